#!/bin/sh
# Install PyTorch with the pip of the given Python: the CPU build where there is no NVIDIA GPU.
#
#   ops/torch.sh .venv/bin/python
#
# BATON_TORCH_VERSION  which version (default 2.13.0)
# BATON_TORCH_INDEX    which index. Default without a GPU: https://download.pytorch.org/whl/cpu, if
#                      it answers within 5 seconds; else, and with a GPU, the index that pip is set
#                      up with.
set -eu
python=$1
version=${BATON_TORCH_VERSION:-2.13.0}
index=${BATON_TORCH_INDEX:-}
cpu=https://download.pytorch.org/whl/cpu

answers() {
  "$python" -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1] + "/torch/", timeout=5)' \
    "$1" 2>/dev/null
}

if [ -z "$index" ] && [ "$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null; then
  if answers "$cpu"; then
    index=$cpu
  else
    echo "torch: $cpu does not answer, taking torch $version from pip's own index"
  fi
fi
exec "$python" -m pip install -q --disable-pip-version-check ${index:+--index-url "$index"} \
  "torch==$version"
