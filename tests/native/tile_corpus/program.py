"""Random programs: a configuration, and instructions that are legal under it, made once and run on any data."""

import ctypes
import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tests.native.tile_corpus.assembly import PRODUCTS, Functions, Operand, random_operand
from tests.native.tile_corpus.machine import MIDDLE, SIZE, Bytes, Corpus, Model, aimed, memory_at, same_sums, words

STEPS = 60
REACH = 60_000  # bytes from the middle of the memory that an operand's first row may have
STRIDES = (64, 64, 128, 100, -64, 0, 1 << 12, 9_000)
ABSOLUTE = 0x2000_0000  # where the memory of operands without a base is
BESIDE = "beside"  # a configuration that lies beside the code


class Step(NamedTuple):
    """One instruction: its name, its tiles, its function and its operand."""

    name: str
    tiles: tuple[int, ...]
    function: str
    operand: Operand = Operand()
    start: int = 0
    stride: int = 0


@dataclass
class Program:
    """A configuration and steps."""

    config: Bytes
    steps: list[Step]


def random_config(rng: random.Random) -> tuple[Bytes, dict[str, list[int]]]:
    """Tiles of three shapes, M x N, M x K and K x N dwords, and which tiles have which; sometimes all are full."""
    M, K, N = (16, 16, 16) if rng.random() < 0.3 else (rng.randint(1, 16) for _ in range(3))
    roles = ["C", "A", "B", *rng.choices("CAB", k=5)]
    rng.shuffle(roles)
    shapes = {"C": (M, N), "A": (M, K), "B": (K, N)}
    config = np.zeros(64, np.uint8)
    config[0] = 1
    for tile, role in enumerate(roles):
        config[48 + tile], config[16 + 2 * tile] = shapes[role][0], 4 * shapes[role][1]
    config[1] = rng.randrange(config[48]) if rng.random() < 0.2 else 0  # tile 0 is loaded first
    by_role = {role: [tile for tile, own in enumerate(roles) if shapes[own] == shapes[role]] for role in "CAB"}
    return config, by_role


def random_program(rng: random.Random, functions: Functions, absolute: int) -> Program:
    """Operands without a base lie in the memory at `absolute`. 0: none, and nothing that threads would share."""
    config, roles = random_config(rng)
    beside = absolute and rng.random() < 0.3
    steps = [
        Step("ldtilecfg", (), functions.relative("ldtilecfg", BESIDE))
        if beside
        else _config_in_memory(rng, functions, "ldtilecfg", 0)
    ]
    steps += [_memory(rng, functions, config, "tileloadd", tile, absolute) for tile in range(8)]
    while len(steps) < STEPS:
        chance = rng.random()
        if chance < 0.6:
            c, a, b = (rng.choice(roles[role]) for role in "CAB")
            if len({c, a, b}) == 3:
                name = rng.choice(PRODUCTS)
                steps.append(Step(name, (c, a, b), functions.product(name, c, a, b)))
        elif chance < 0.9:
            name = rng.choice(["tileloadd", "tileloaddt1", "tilestored"])
            steps.append(_memory(rng, functions, config, name, rng.randrange(8), absolute))
        elif chance < 0.94:
            tile = rng.randrange(8)
            steps.append(Step("tilezero", (tile,), functions.plain(f"tilezero %tmm{tile}")))
        else:
            steps.append(_config_in_memory(rng, functions, "sttilecfg", absolute))
    steps.append(Step("tilerelease", (), functions.plain("tilerelease")))
    return Program(config, steps)


def _config_in_memory(rng: random.Random, functions: Functions, name: str, absolute: int) -> Step:
    operand = random_operand(rng, absolute + MIDDLE if absolute else 0, one_row=False)
    return _placed(rng, name, (), functions.with_memory(name, operand), operand)


def _memory(rng: random.Random, functions: Functions, config: Bytes, name: str, tile: int, absolute: int) -> Step:
    operand = random_operand(rng, absolute + MIDDLE if absolute else 0, one_row=bool(config[48 + tile] == 1))
    function = functions.with_memory(name, operand, f"%tmm{tile}", before=name == "tilestored")
    return _placed(rng, name, (tile,), function, operand)


def _placed(rng: random.Random, name: str, tiles: tuple[int, ...], function: str, operand: Operand) -> Step:
    stride = rng.choice(STRIDES)
    stride = abs(stride) if operand.base == "rsp" else stride
    return Step(name, tiles, function, operand, MIDDLE + rng.randint(-REACH, REACH), stride)


class CorpusRun:
    """Runs programs, instruction by instruction, on the CPU or the handler and on the model."""

    def __init__(self, corpus: Corpus, functions: Functions, address: int, seed: int) -> None:
        self.corpus, self.address = corpus, address
        self.memory, self.model = memory_at(address), Model(corpus)
        self.expected = np.zeros(SIZE, np.uint8)
        self.random = np.random.default_rng(seed)
        self.store = stores(functions)
        self.products = self.sums = self.instructions = 0

    def run(self, program: Program) -> None:
        """AssertionError where the two differ."""
        self._fill()
        for number, step in enumerate(program.steps):
            self._step(step, program.config)
            self.instructions += 1
            where = f"step {number}: {step}; configuration {program.config.tolist()}"
            if len(step.tiles) == 3:
                self._compare_sums(step, where)
            elif step.name in ("tilestored", "sttilecfg"):
                self._compare_memory(step, where)
            elif step.name != "tilerelease" and step.name != "ldtilecfg":
                self._compare_tile(step, where)

    def _fill(self) -> None:
        """Data of a kind: numbers near 1 of one type or another, or any bits that are not NaN."""
        kind = self.random.integers(3)
        words16 = self.random.integers(0, 1 << 16, SIZE // 2, np.uint16)
        if kind == 0:
            words16 = (words16 & 0x83FF) | 0x3E00  # as bf16 and as fp16
        elif kind == 1:
            words16 = np.where((words16 & 0x7F80) == 0x7F80, words16 & 0xFF80, words16)
            words16 = np.where((words16 & 0x7C00) == 0x7C00, words16 & 0xBFFF, words16)
        self.memory[:] = words16.view(np.uint8)

    def _step(self, step: Step, config: Bytes) -> None:
        base, index, start, stride = aimed(step.operand, self.address + step.start, step.stride)
        at = start - self.address
        if step.name == "ldtilecfg":
            if step.operand == Operand():
                write(self.corpus.address(BESIDE), config)
            else:
                at += stride  # a plain address has the index in it
                self.memory[at : at + 64] = config
        self.expected[:] = self.memory
        if step.name == "sttilecfg":
            at += stride
            self.expected[at : at + 64] = self.model.config
        self.corpus[step.function](words((base, index)))
        self._model(step, config, at, stride)

    def _model(self, step: Step, config: Bytes, at: int, stride: int) -> None:
        model, memory = self.model, self.expected
        if step.name == "ldtilecfg":
            model.configure(config)
        elif step.name == "tilerelease":
            model.release()
        elif step.name == "tilezero":
            model.zero(*step.tiles)
        elif step.name == "tilestored":
            model.store(*step.tiles, memory, at, stride)
        elif step.name.startswith("tileload"):
            model.load(*step.tiles, memory, at, stride)
        elif step.name != "sttilecfg":
            self.products += 1
            self.sums += model.product(step.name, *step.tiles)

    def _stored(self, tile: int) -> Bytes:
        """What a tile holds, through an instruction that is tested elsewhere."""
        place = SIZE - 1024
        self.corpus[self.store[tile]](words((self.address + place, 64)))
        return self.memory[place:].reshape(16, 64)[: self.model.rows(tile), : self.model.row_bytes(tile)].copy()

    def _compare_sums(self, step: Step, where: str) -> None:
        c = step.tiles[0]
        got, expected = self._stored(c), self.model.tiles[c, : self.model.rows(c), : self.model.row_bytes(c)]
        assert same_sums(step.name, got, np.ascontiguousarray(expected)), where
        self.model.tiles[c, : got.shape[0], : got.shape[1]] = got  # the payloads of NaN that it has

    def _compare_tile(self, step: Step, where: str) -> None:
        tile = step.tiles[0]
        expected = self.model.tiles[tile, : self.model.rows(tile), : self.model.row_bytes(tile)]
        assert np.array_equal(self._stored(tile), expected), where

    def _compare_memory(self, step: Step, where: str) -> None:
        """All of it; with the stack pointer as base what is below belongs to the frames of signals."""
        first = 0
        if step.operand.base == "rsp":
            first = max(aimed(step.operand, step.start, step.stride)[0], 0)
        assert np.array_equal(self.memory[first:], self.expected[first:]), where


def stores(functions: Functions) -> list[str]:
    """For each tile a function that stores it."""
    plain = Operand("rax", "rcx")
    return [functions.with_memory("tilestored", plain, f"%tmm{tile}", before=True) for tile in range(8)]


def write(address: int, content: Bytes) -> None:
    """Put bytes at an address."""
    ctypes.memmove(address, content.tobytes(), content.size)
