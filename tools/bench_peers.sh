#!/bin/sh
# Makes build/peers, a Python environment with the peers (llama.cpp compiled for this processor: about ten minutes on two
# cores), and prints the side-by-side table.
set -eu
cd "$(dirname "$0")/.."
stamp=build/peers/complete-1
if [ ! -e "$stamp" ]; then
  echo "installing the peers into build/peers (llama-cpp-python, torch, openvino-genai)"
  rm -rf build/peers
  mkdir -p build
  python3 -m venv build/peers
  build/peers/bin/pip install --quiet --disable-pip-version-check "llama-cpp-python" "torch" "openvino-genai" "numpy"
  touch "$stamp"
fi
exec build/peers/bin/python3 tools/bench_peers.py "$@"
