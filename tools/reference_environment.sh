#!/bin/sh
# Makes build/reference, a Python environment with the packages that tests compare with. Does nothing if it is complete.
set -eu
cd "$(dirname "$0")/.."
stamp=build/reference/complete-1
[ -e "$stamp" ] && exit 0
echo "installing the reference packages into build/reference (torch, transformers, ...; a few minutes)"
rm -rf build/reference
mkdir -p build
python3 -m venv build/reference
build/reference/bin/pip install --quiet --disable-pip-version-check \
  "torch" "transformers==5.*" "compressed-tensors" "accelerate" "tokenizers" "safetensors" "gguf" "numpy" "jinja2"
touch "$stamp"
