"""Instructions of the engine's kernels, compiled for an H200 without having one.

    pip install --no-deps --target LIB triton==3.6.0
    PYTHONPATH=LIB:src python benchmarks/2026-11-15-kernels/run.py

A line a kernel at the sizes of the paper's networks: instructions of its largest loop, how many of
them work on integers (addresses, masks, moves), products of the tensor cores, registers a thread.
Works on older versions of `triton_layers`, too, whose sizes were no constants.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from scool.engine.kernels import layers as triton_layers
from scool.engine.kernels import linear as triton_linear
from scool.engine.kernels import norm as triton_norm

TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
TYPES = {"which_ptr": "*u8", "lr": "fp32", "keep": "fp32", "eps": "fp32"}
OTHERS = re.compile(r"[FH]|MUFU|LD|ST|BAR|BRA|DEP|SHFL|RED|WARP|NOP|EXIT|@!PT|CCTL|ERR|MEM|S2R")
CONV1 = {"H": 32, "W": 32, "OH": 28, "OW": 28, "PH": 14, "PW": 14, "CI": 3, "NO": 32, "BO": 32}
CONV1 |= {"KH": 5, "KW": 5, "RUN": 15, "P": 7840, "CH": 32}
CONV2 = {"H": 14, "W": 14, "OH": 10, "OW": 10, "PH": 5, "PW": 5, "CI": 32, "NO": 64, "BO": 64}
CONV2 |= {"KH": 5, "KW": 5, "RUN": 160, "P": 1000, "CH": 64}
CONV84 = {"H": 84, "W": 84, "OH": 82, "OW": 82, "CI": 3, "NO": 32, "BO": 32, "KH": 3, "RUN": 9}
WHOLE, SUMS = {"BP": 128, "BK": 32, "SUMS": False}, {"SUMS": True}
POOL1 = CONV1 | {"H": 28, "W": 28, "OH": 14, "OW": 14, "BLOCK": 1024}
NORM = {"H": 82, "W": 82, "PH": 41, "PW": 41, "S": 2, "CH": 32, "G": 4, "PIXELS": 82 * 82}
FIRST = CONV84 | NORM | {"XH": 84, "XW": 84, "BLOCK": 16}
DH = {"UPDATE": False, "SHARE": 16, "BK": 16}
DW = {"UPDATE": True, "SHARE": 432, "BK": 32}
UPDATE1 = {"SHARE": 1960, "BP": 32, "BK": 16, "UPDATE": False, "ROWS": 0}
UPDATE2 = {"SHARE": 1000, "BP": 32, "BK": 64, "UPDATE": True, "ROWS": 0}
LINEAR = {"NI": 1600, "NO": 512, "HAS_DX": True, "BB": 16, "BI": 64, "BO": 32}
KERNELS: list[tuple[str, Any, int, int, dict[str, Any]]] = [
    ("conv 1 forward", triton_layers._conv_pool_forward, 2, 2, CONV1 | {"BP": 32, "BK": 16}),
    ("conv 2 forward", triton_layers._conv_pool_forward, 4, 3, CONV2 | {"BP": 32, "BK": 32}),
    ("conv 84 forward", triton_layers._conv_forward, 4, 2, CONV84 | WHOLE),
    ("conv 84 forward with sums", triton_layers._conv_forward, 4, 2, CONV84 | WHOLE | SUMS),
    ("conv 1 update", triton_layers._conv_weight_gradient, 1, 3, CONV1 | UPDATE1),
    (
        "conv 1 update, by rows",
        triton_layers._conv_weight_gradient,
        1,
        3,
        CONV1 | UPDATE1 | {"ROWS": 1, "SHARE": 70},
    ),
    ("conv 2 update", triton_layers._conv_weight_gradient, 2, 3, CONV2 | UPDATE2),
    (
        "conv 2 input gradient",
        triton_layers._conv_input_gradient,
        4,
        3,
        CONV2 | {"BQ": 64, "BC": 32},
    ),
    ("pool 1 backward", triton_layers._pool_backward, 4, 3, POOL1),
    ("linear backward", triton_linear._linear_backward, 2, 3, LINEAR),
    ("norm statistics", triton_norm._statistics, 1, 3, NORM | {"BLOCKS": 53, "NB": 64}),
    ("norm and pool", triton_norm._norm_pool, 4, 3, NORM | {"BLOCK": 32}),
    ("norm sums", triton_norm._norm_sums, 4, 3, NORM | {"PIXELS": 41 * 41, "BLOCK": 128}),
    ("norm gradient", triton_norm._window_gradient, 4, 3, FIRST | DH),
    ("norm and conv 84 update", triton_norm._window_gradient, 2, 2, FIRST | DW),
]


def compiled(kernel: Any, warps: int, stages: int, sizes: dict[str, Any]) -> Any:
    """For an H200; sizes that the kernel takes as arguments are left open."""
    constants = {p.name: sizes[p.name] for p in kernel.params if p.is_constexpr}
    names, signature, aligned = kernel.arg_names, {}, {}
    for place, name in enumerate(names):
        kind = TYPES.get(name, "*fp32" if name.endswith("_ptr") else "i32")
        signature[name] = "constexpr" if name in constants else kind
        if name.endswith("_ptr"):
            aligned[(place,)] = [["tt.divisibility", 16]]
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=aligned)
    options = {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def listing(cubin: bytes) -> tuple[list[tuple[int, str]], int]:
    """The instructions with their addresses, and the registers of a thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        texts = [
            subprocess.run([TOOL, what, file.name], capture_output=True, text=True).stdout
            for what in ("-sass", "-res-usage")
        ]
    lines = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", texts[0], re.MULTILINE)
    found = re.search(r"REG:(\d+)", texts[1])
    assert found is not None
    return [(int(at, 16), text) for at, text in lines], int(found[1])


def largest_loop(instructions: list[tuple[int, str]]) -> list[str]:
    """What lies between a jump back and its aim; everything where nothing jumps back."""
    loops = [[text for _, text in instructions]]
    for at, text in instructions:
        jump = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)
        if jump and int(jump[1], 16) < at:
            loops.append([t for a, t in instructions if int(jump[1], 16) <= a <= at])
    return max(loops[1:] or loops, key=len)


def main() -> None:
    for name, kernel, warps, stages, sizes in KERNELS:
        if sizes.get("ROWS") and "ROWS" not in kernel.arg_names:
            continue
        instructions, registers = listing(compiled(kernel, warps, stages, sizes).asm["cubin"])
        loop = largest_loop(instructions)
        codes = [re.sub(r"^@!?U?P\d+ ", "", text).split()[0] for text in loop]
        row = {
            "kernel": name,
            "instructions": len(instructions),
            "loop": len(loop),
            "integer": sum(not OTHERS.match(code) for code in codes),
            "products": sum(code.startswith(("HMMA", "HGMMA")) for code in codes),
            "registers": registers,
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
