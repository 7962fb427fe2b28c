"""Code in a file built with extra -m flags must not leave weak symbols outside its own namespace: the linker may take
that copy for the whole program, and a processor without the instructions would then die in ordinary code."""
import re
import subprocess
import sys

import support

ALLOWED = re.compile(r"\bhalftone::(?:[a-z_]+::)*(avx2|avx512)\b")


def weak_symbols(object_file):
    out = subprocess.run(["nm", "-C", "--defined-only", object_file], capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        parts = line.split(maxsplit=2)
        if len(parts) == 3 and parts[1] in "WVu":
            yield parts[2]


def escapes(symbols):
    return [s for s in symbols if not ALLOWED.search(s) and s != "DW.ref.__gxx_personality_v0"]


def main():
    assert escapes(["void std::vector<float>::push_back(float)"]) and not escapes(["halftone::avx2::decode(int)"])
    objects = sorted(p for p in support.BUILD.rglob("*.o") if re.search(r"_(avx2|avx512)\.cc\.o$", p.name))
    if not objects:
        support.skip(f"no instruction-set objects under {support.BUILD} (built with HALFTONE_SIMD=OFF?)")
    failed = 0
    for path in objects:
        for symbol in escapes(weak_symbols(path)):
            print(f"{path.name}: weak symbol outside its namespace: {symbol}")
            failed += 1
    print(f"{len(objects)} objects, {failed} escapes")
    sys.exit(1 if failed else 0)


main()
