"""A folder includes only folders on lower levels, never sideways and never upwards (docs/architecture.md)."""
import re
import sys

import support

LEVELS = [{"base"}, {"numeric"}, {"tensor"}, {"kernels", "checkpoint", "text"}, {"model", "quantize"},
          {"pipeline", "evaluate", "train", "serve"}, {"cli"}]
LEVEL_OF = {folder: level for level, folders in enumerate(LEVELS) for folder in folders}
# model and quantize do not know files; text knows no tensors.
MUST_NOT = {"model": {"checkpoint"}, "quantize": {"checkpoint", "model", "text"}, "text": {"numeric", "tensor"},
            "evaluate": {"checkpoint"}}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([a-z0-9_]+)/', re.MULTILINE)


def violations(folder, text):
    for included in INCLUDE.findall(text):
        if included not in LEVEL_OF:
            yield f"includes unknown folder {included}"
        elif included != folder and LEVEL_OF[included] >= LEVEL_OF[folder]:
            yield f"includes {included}, which is not on a lower level"
        elif included in MUST_NOT.get(folder, ()):
            yield f"includes {included}, which it must not know"


def main():
    # The test must be able to fail.
    assert list(violations("numeric", '#include "tensor/dtype.h"\n'))
    assert list(violations("kernels", '#include "text/tokenizer.h"\n'))
    assert list(violations("model", '#include "checkpoint/gguf.h"\n'))
    assert not list(violations("model", '#include "kernels/matmul/matmul.h"\n#include "model/config.h"\n'))
    found = files = 0
    for path in sorted((support.ROOT / "src").rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        folder = path.relative_to(support.ROOT / "src").parts[0]
        files += 1
        if folder not in LEVEL_OF:
            print(f"{path}: folder {folder} has no level")
            found += 1
            continue
        for problem in violations(folder, path.read_text()):
            print(f"{path.relative_to(support.ROOT)}: {problem}")
            found += 1
    print(f"{files} files, {found} violations")
    sys.exit(1 if found or files < 10 else 0)


main()
