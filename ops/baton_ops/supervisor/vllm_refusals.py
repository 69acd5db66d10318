"""Flags of `vllm serve` without an equivalent here, by what to do instead."""

from __future__ import annotations

from typing import NamedTuple


class Refusal(NamedTuple):
    """Flags that are refused for the same reason."""

    instead: str
    switches: tuple[str, ...] = ()
    """Flags without a value."""
    flags: tuple[str, ...] = ()
    """Flags with a value."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_MEDIA = "images are prepared as the checkpoint says, and cached by --encoder-cache-bytes"

REFUSED = (
    Refusal(
        "prompts are always split: a larger --max-num-batched-tokens makes it rare",
        _names("--no-enable-chunked-prefill"),
        _names(
            "--max-num-partial-prefills --max-long-partial-prefills --long-prefill-token-threshold"
        ),
    ),
    Refusal("use --otlp-endpoint", (), _names("--collect-detailed-traces")),
    Refusal("prompts are never logged", _names("--enable-log-requests --enable-log-outputs")),
    Refusal("log lines hold no prompts", (), _names("--max-log-len --log-config-file")),
    Refusal(
        "code of a checkpoint is never run; a supported architecture needs none",
        _names("--trust-remote-code"),
        _names("--code-revision"),
    ),
    Refusal(
        "the formats of outputs are rows of baton.output_parsing: use --tool-call-parser and "
        "--reasoning-parser",
        (),
        _names("--tool-parser-plugin --reasoning-parser-plugin"),
    ),
    Refusal("tools run at the client", (), _names("--tool-server")),
    Refusal(
        "the chat template gets the tools of a request, whatever its tool_choice is",
        _names("--exclude-tools-when-tool-choice-none"),
    ),
    Refusal(
        'say it in --speculative-config, such as {"method": "ngram", "num_speculative_tokens": 5}',
        (),
        _names("--num-lookahead-slots --spec-method --spec-model --spec-tokens"),
    ),
    Refusal(
        "adapters are served by workers of one process: leave it out",
        _names("--enable-lora-bias --fully-sharded-loras"),
    ),
    Refusal(
        "nothing is compiled by torch here; --cuda-graphs and --max-cudagraph-capture-size",
        (),
        _names(
            "-O --compilation-config --cuda-graph-sizes --cudagraph-capture-sizes "
            "--optimization-level --performance-mode"
        ),
    ),
    Refusal(
        "terminate TLS in a proxy in front of the gateway",
        _names("--enable-ssl-refresh"),
        _names("--ssl-keyfile --ssl-certfile --ssl-ca-certs --ssl-cert-reqs --ssl-ciphers"),
    ),
    Refusal(
        "set it in a proxy in front of the gateway",
        (),
        _names("--root-path --middleware --uds"),
    ),
    Refusal(
        "requests are bounded by --max-body-bytes",
        (),
        _names("--h11-max-incomplete-event-size --h11-max-header-count"),
    ),
    Refusal(
        "the tokenizer comes from the checkpoint",
        _names("--skip-tokenizer-init"),
        _names("--tokenizer --tokenizer-revision"),
    ),
    Refusal(
        _MEDIA,
        _names(
            "--enable-mm-embeds --disable-mm-preprocessor-cache --interleave-mm-strings "
            "--skip-mm-profiling --disable-chunked-mm-input"
        ),
        _names(
            "--mm-processor-cache-gb --mm-encoder-tp-mode "
            "--allowed-local-media-path --video-pruning-rate"
        ),
    ),
    Refusal(
        "requests name their template arguments: chat_template_kwargs",
        _names("--trust-request-chat-template"),
        _names("--chat-template-content-format --default-chat-template-kwargs"),
    ),
    Refusal(
        "requests ask for it: return_token_ids, stream_options.include_usage",
        _names("--return-tokens-as-token-ids --enable-force-include-usage"),
    ),
    Refusal("use --num-gpu-blocks-override", (), _names("--kv-cache-memory-bytes")),
    Refusal(
        "weights do not move to the host",
        (),
        _names("--cpu-offload-gb --offload-backend"),
    ),
    Refusal("use --host-cache-bytes", (), _names("--kv-offloading-backend")),
    Refusal(
        "edit config.json",
        _names("--disable-sliding-window"),
        _names("--hf-overrides --rope-scaling --rope-theta --hf-config-path"),
    ),
    Refusal("use --pooling-type", (), _names("--pooler-config --override-pooler-config")),
    Refusal(
        "the loader finds the format of a checkpoint itself: leave it out",
        (),
        _names(
            "--safetensors-load-strategy --model-loader-extra-config --ignore-patterns "
            "--pt-load-map-location --max-parallel-loading-workers"
        ),
    ),
    Refusal("log in with `hf auth login`, or set HF_TOKEN", (), _names("--hf-token")),
    Refusal("prompts are text or token ids", _names("--enable-prompt-embeds")),
    Refusal("use --logits-processors", (), _names("--io-processor-plugin")),
    Refusal(
        "use --grammar-backend",
        _names("--guided-decoding-disable-fallback"),
        _names("--structured-outputs-config"),
    ),
    Refusal(
        "start workers on the other hosts and name the scheduler with --fleet-address",
        _names("--headless --ray-workers-use-nsight"),
        _names(
            "--master-addr --master-port -dpn --data-parallel-start-rank -dpl "
            "--data-parallel-size-local -dpa --data-parallel-address -dpp "
            "--data-parallel-rpc-port -dpb --data-parallel-backend"
        ),
    ),
    Refusal(
        "one scheduler balances all workers: leave it out",
        _names("--data-parallel-hybrid-lb --data-parallel-external-lb"),
        _names("--scheduler-cls --worker-cls --worker-extension-cls"),
    ),
    Refusal(
        "the workers of an expert group compute shared experts while tokens travel, and overlap "
        "nothing else: leave it out",
        _names("--enable-dbo"),
    ),
    Refusal(
        "the scales of keys and values are those of the checkpoint, or of each token",
        _names("--calculate-kv-scales"),
    ),
    Refusal(
        "states have the precision of the model: use --dtype",
        (),
        _names("--mamba-cache-dtype --mamba-ssm-cache-dtype --mamba-block-size"),
    ),
    Refusal(
        "use --attention-backend",
        _names("--disable-cascade-attn --kv-sharing-fast-prefill"),
        _names("--attention-config"),
    ),
    Refusal("the scheduler decides it: leave it out", (), _names("--additional-config")),
    Refusal("KV events are not published", (), _names("--kv-events-config")),
    Refusal(
        "metrics have one name each, listed in docs/operations/observability.md",
        _names("--kv-cache-metrics"),
        _names("--show-hidden-metrics-for-version"),
    ),
    Refusal(
        "/docs shows what is served: tokenizers are not described over HTTP",
        _names("--enable-tokenizer-info-endpoint"),
    ),
    Refusal(
        "media are prepared, encoded and cached as docs/api/multimodal.md says",
        _names("--language-model-only --mm-device-do-normalize --trust-request-mm-kwargs"),
        _names(
            "--mm-processor-cache-type --mm-hasher-algorithm --mm-shm-cache-max-object-size-mb "
            "--mm-encoder-attn-backend --mm-encoder-attn-dtype --mm-encoder-fp8-scale-path "
            "--mm-encoder-fp8-scale-save-path --mm-encoder-fp8-scale-save-margin "
            "--video-pruning-method --mm-processor-device --mm-ipc-gpu-memory-gb "
            "--diffusion-config"
        ),
    ),
    Refusal(
        "use --encode-workers N: workers of the role encode have the vision encoder alone, and "
        "embeddings go over --kv-transports",
        _names("--mm-encoder-only"),
        _names("--ec-transfer-config --ec-manager-config"),
    ),
    Refusal(
        "adapters are served for the linear layers of text models, all of them: leave it out",
        _names(
            "--enable-tower-connector-lora --specialize-active-lora "
            "--enable-mixed-moe-lora-format --enable-moe-shared-loras"
        ),
        _names("--lora-target-modules --max-lora-cls-labels"),
    ),
    Refusal(
        "GET /v1/requests/{id}/explain reports a request's accepted drafts",
        _names("--per-request-spec-decode-metrics"),
    ),
    Refusal(
        "the kernels of each machine are chosen when it starts: leave it out",
        _names(
            "--use-fp64-gumbel --enable-flashinfer-autotune "
            "--enable-mamba-cache-stochastic-rounding --use-replayssm "
            "--enable-flash-late-interaction"
        ),
        _names(
            "--mamba-backend --mamba-ssu-algorithm --mamba-cache-philox-rounds --mamba-cache-mode "
            "--replayssm-buffer-len --linear-backend --sparse-indexer-topk-backend "
            "--ir-op-priority --kernel-config --gdn-prefill-backend --kda-prefill-backend "
            "--kda-decode-backend --engram-config"
        ),
    ),
    Refusal(
        "the prefix cache has one policy: --enable-prefix-caching turns it on or off",
        _names("--enable-mamba-shared-prefix-checkpoint --swa-bounded-replay"),
        _names("--prefix-cache-retention-interval --prefix-match-unit"),
    ),
    Refusal(
        "all layers have one dtype of keys and values: --kv-cache-dtype",
        (),
        _names("--kv-cache-dtype-skip-layers"),
    ),
    Refusal(
        "weights do not move to the host",
        _names(
            "--sleep-mode-offload-cudagraph --enable-cumem-allocator --enable-nccl-comm-suspend"
        ),
        _names(
            "--sleep-preserve-parameter-names --cpu-offload-params --offload-group-size "
            "--offload-num-in-group --offload-prefetch-step --offload-params"
        ),
    ),
    Refusal(
        "the loader finds the format of a checkpoint itself: leave it out",
        _names("--allow-deprecated-quantization"),
        _names(
            "--quantization-config --safetensors-prefetch-num-threads "
            "--safetensors-prefetch-block-size --model-class-overrides"
        ),
    ),
    Refusal(
        "the ranks of a worker need none of it: leave it out",
        _names(
            "--dcp-q-replicate --enable-hc-sp --enable-batch-sharded-sampling "
            "--enable-ep-weight-filter --enable-shm-tensor-arena "
            "--disable-nccl-for-dp-synchronization --numa-bind"
        ),
        _names(
            "--distributed-timeout-seconds --cpu-distributed-timeout-seconds --numa-bind-nodes "
            "--numa-bind-cpus --dcp-comm-backend --dcp-kv-cache-interleave-size "
            "--cp-kv-cache-interleave-size --prefill-context-parallel-size --ubatch-size "
            "--dbo-decode-token-threshold --dbo-prefill-token-threshold --dp-sync-interval"
        ),
    ),
    Refusal(
        "workers join and leave by themselves, and a lost one costs no answer: leave it out",
        _names(
            "--data-parallel-multi-port-external-lb --enable-elastic-ep --enable-fault-tolerance "
            "--enable-scale-out"
        ),
        _names(
            "--elastic-ep-max-dp-size --fault-tolerance-config --data-parallel-supervisor-port "
            "--dp-supervisor-probe-interval-s --dp-supervisor-probe-timeout-s "
            "--dp-supervisor-probe-failure-threshold"
        ),
    ),
    Refusal(
        "the scheduler decides it: leave it out",
        _names("--long-prefill-token-threshold-adaptive --scheduler-reserve-full-isl"),
        _names(
            "--max-num-scheduled-tokens --max-num-active-seqs --watermark "
            "--prefill-schedule-interval"
        ),
    ),
    Refusal(
        "the metrics and logs are those of docs/operations/observability.md",
        _names(
            "--cudagraph-metrics --enable-layerwise-nvtx-tracing --enable-mfu-metrics "
            "--enable-logging-iteration-details --enable-per-request-metrics --enable-log-deltas "
            "--aggregate-engine-logging --jit-monitor-verbose"
        ),
        _names(
            "--logging-config --kv-cache-metrics-sample --custom-histogram-buckets "
            "--jit-monitor-mode --disable-access-log-for-endpoints"
        ),
    ),
    Refusal(
        "the API does not have it: leave it out",
        _names(
            "--enable-return-routed-experts --return-sampling-mask --enable-trace-replay "
            "--tokens-only --cohere-is-reasoning-model"
        ),
        _names(
            "--reasoning-config --aux-output-config --watermark-config --tool-strict-level "
            "--cohere-format --anthropic-disabled-thinking-effort --fingerprint-mode "
            "--fingerprint-value"
        ),
    ),
    Refusal(
        "gRPC is served beside HTTP: --grpc-port PORT",
        _names("--grpc"),
        (),
    ),
    Refusal(
        "the API does not have it: leave it out",
        _names("--enable-offline-docs"),
        _names("--renderer-num-workers"),
    ),
    Refusal(
        "an unknown variable of Baton always stops the start",
        _names("--fail-on-environ-validation"),
        (),
    ),
)
