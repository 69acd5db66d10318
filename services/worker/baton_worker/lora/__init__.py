"""LoRA adapters: PEFT folders, and which of them a step has."""
