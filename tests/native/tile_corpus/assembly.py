"""Functions of one tile instruction each, written as assembly and compiled."""

import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

REGISTERS = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *(f"r{n}" for n in range(8, 16)))
PRODUCTS = ("tdpbf16ps", "tdpfp16ps", "tdpbuud", "tdpbusd", "tdpbsud", "tdpbssd")
HEAD = """
.section .tbss,"awT",@nobits
.balign 8
saved: .skip 8
.text
"""
KEPT = ("rbx", "rbp", "r12", "r13", "r14", "r15")
ENTER = "".join(f"push %{name}\n" for name in KEPT) + "movq saved@gottpoff(%rip), %rax\nmovq %rsp, %fs:(%rax)\n"
LEAVE = "".join(
    ["movq saved@gottpoff(%rip), %rax\nmovq %fs:(%rax), %rsp\n", *(f"pop %{name}\n" for name in reversed(KEPT)), "ret\n"]
)


def vex(opcode: int, reg: int, rm: int, right: int = 0, *, prefix: int, first: int = 0xE2, wide: int = 0) -> str:
    """A tile instruction between registers in bytes: also one that no assembler writes. `wide` are the bits W and L."""
    return f".byte 0xc4, {first:#x}, {(~right & 15) << 3 | prefix | wide:#x}, {opcode:#x}, {0xC0 | reg << 3 | rm:#x}"


@dataclass(frozen=True)
class Operand:
    """An addressing form; what the registers hold is decided when the function is called."""

    base: str = ""
    index: str = ""
    scale: int = 0
    """Of the index, as a power of two."""
    displacement: int = 0
    wide: bool = False
    """Four bytes of displacement where one would do."""

    def __str__(self) -> str:
        index = f",%{self.index},{1 << self.scale}" if self.index else ""
        registers = f"({f'%{self.base}' if self.base else ''}{index})" if self.base or self.index else ""
        return f"{self.displacement or '' if registers else self.displacement}{registers}"


@dataclass
class Functions:
    """The functions that a corpus needs: each text once."""

    names: dict[str, str] = field(default_factory=dict)
    data: list[str] = field(default_factory=list)

    def plain(self, instruction: str) -> str:
        """The name of the function that runs just this."""
        return self.names.setdefault(f"{instruction}\nret\n", f"f{len(self.names)}")

    def with_memory(self, instruction: str, operand: Operand, tile: str = "", before: bool = False) -> str:
        """The same with an operand in memory: base and index are the two words that its argument points to."""
        loads = [f"movq {offset}(%rdi), %{name}\n" for offset, name in ((0, operand.base), (8, operand.index)) if name]
        if operand.base == "rdi":
            loads.reverse()
        if operand.base == operand.index:
            loads = loads[:1]
        operands = ", ".join(([tile] if tile and before else []) + [str(operand)] + ([tile] if tile and not before else []))
        encoding = "{disp32} " if operand.wide and (operand.base or operand.index) else ""
        text = f"{ENTER}{''.join(loads)}{encoding}{instruction} {operands}\n{LEAVE}"
        return self.names.setdefault(text, f"f{len(self.names)}")

    def product(self, name: str, c: int, a: int, b: int) -> str:
        """c += a b. In bytes, where the assembler of a compiler that is old does not know the name."""
        if name != "tdpfp16ps":
            return self.plain(f"{name} %tmm{b}, %tmm{a}, %tmm{c}")
        return self.plain(vex(0x5C, c, a, b, prefix=3))

    def relative(self, instruction: str, label: str) -> str:
        """An operand beside the code."""
        return self.plain(f"{instruction} {label}(%rip)")

    def build(self, folder: Path) -> Path:
        """Compile them into a library, with the model."""
        source, library = folder / "corpus.S", folder / "corpus.so"
        functions = "".join(f".globl {name}\n{name}:\n{text}" for text, name in self.names.items())
        data = ".data\n.balign 64\n" + "".join(f".globl {label}\n{label}: .skip 64\n" for label in self.data)
        note = '.section .note.GNU-stack,"",@progbits\n'
        source.write_text(HEAD + functions + data + note)
        model = Path(__file__).with_name("model.cpp")
        options = ["-shared", "-fPIC", "-O2", "-ffp-contract=off", "-Wl,-Bsymbolic"]
        command = ["g++", *options, "-o", str(library), str(model), str(source)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return library


def random_operand(rng: random.Random, absolute: int, *, one_row: bool) -> Operand:
    """Any base, index, scale and displacement; without a base an address of its own, where one is given. A stack pointer as
    base has its frames below: displacement and stride go up. Base and index are one register only for `one_row`."""
    base = rng.choice(REGISTERS)
    indices = [name for name in REGISTERS if name != "rsp" and (name != base or one_row)]
    index = rng.choice(["", *indices]) if rng.random() < 0.3 else rng.choice(indices)
    displacement = rng.choice([0, rng.randint(-128, 127), rng.randint(-5000, 5000)])
    if base == "rsp":
        displacement = abs(displacement)
    if absolute and rng.random() < 0.1:
        base, displacement = "", absolute + displacement
    return Operand(base, index, rng.randrange(4), displacement, rng.random() < 0.2)
