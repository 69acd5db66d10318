"""LoRA adapters: PEFT folders, adapters in memory, device slots."""
