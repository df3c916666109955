"""onnxruntime's operators on the CPU, each in a model of its own with the weight as a constant (`make peers`).

Limits are what its CPU kernels take and what the operators define. Sessions read and write the memory of torch's tensors. Of its
kernels for the CPU only the norms take bfloat16.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.providers.provider import Calls, Unsupported, adapts, fitted, other_layouts
from properties.int4_linear.cases import Int4Case
from properties.int8_linear.cases import Int8Case
from properties.packed_linear.cases import LinearCase
from properties.providers.installed import version_of
from properties.providers.quantized_rows import in_either_form
from properties.rms_norm.cases import NormCase
from reference.pack_int4_weight import unpack_int4_weight
from reference.pack_int8_weight import unpack_int8_weight
from reference.pack_linear_weight import unpack_linear_weight

NAME = "onnxruntime"
NEEDED = (NAME, "onnx")
FLOATS = ("float32", "float16")
IN_ROWS = ("offset",)
TYPES = {torch.float32: 1, torch.uint8: 2, torch.int8: 3, torch.int32: 6, torch.float16: 10, torch.bfloat16: 16}
"""Of ONNX's TensorProto."""
OPSET, CONTRIB, IR = 23, "com.microsoft", 11
GROUPS = (16, 32, 64, 128)  # of columns of MatMulNBits: powers of 2
NOT_OFFERED = "a weight; no gate, no groups, not Gemma's form (not arguments of it)"


def version() -> str:
    """Of the wheel that is installed; empty if none is."""
    return version_of(NAME)


def missing() -> str:
    """Why these kernels cannot be put on trial here."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(absent)}; make peers" if absent else ""


@dataclass
class OneOperator:
    """One operator whose other inputs are constants; a session for each number of threads, made when it is first needed."""

    operator: str
    inputs: Mapping[str, torch.dtype]
    outputs: Mapping[str, torch.dtype]
    order: Sequence[str]
    """Names of the operator's inputs; empty for one that is left out."""
    constants: Mapping[str, Tensor]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    results: Sequence[str] = ("out",)
    """Names of the operator's outputs, likewise."""
    sessions: dict[int, Any] = field(default_factory=dict)

    def __call__(self, given: Mapping[str, Tensor], out: Mapping[str, Tensor]) -> None:
        """Run on contiguous tensors, into contiguous tensors."""
        if any(tensor.numel() == 0 for tensor in given.values()):
            raise Unsupported("at least one element (a session takes no null pointer)")
        binding = self._session().io_binding()
        for name, tensor in given.items():
            binding.bind_input(name, "cpu", 0, TYPES[tensor.dtype], list(tensor.shape), tensor.data_ptr())
        for name, tensor in out.items():
            binding.bind_output(name, "cpu", 0, TYPES[tensor.dtype], list(tensor.shape), tensor.data_ptr())
        self._session().run_with_iobinding(binding)

    def _session(self) -> Any:
        threads = torch.get_num_threads()
        if threads not in self.sessions:
            self.sessions[threads] = self._made(threads)
        return self.sessions[threads]

    def _made(self, threads: int) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.force_spinning_stop", "1")  # whoever's turn is next has the cores
        return onnxruntime.InferenceSession(self._bytes(), options, providers=["CPUExecutionProvider"])

    def _bytes(self) -> bytes:
        from onnx import helper

        def values(dtypes: Mapping[str, torch.dtype]) -> list[Any]:
            return [helper.make_tensor_value_info(name, TYPES[dtype], None) for name, dtype in dtypes.items()]

        node = helper.make_node(self.operator, list(self.order), list(self.results), domain=self.domain, **self.attributes)
        constants = [
            helper.make_tensor(name, TYPES[tensor.dtype], tensor.shape, _raw(tensor), raw=True)
            for name, tensor in self.constants.items()
        ]
        graph = helper.make_graph([node], self.operator, values(self.inputs), values(self.outputs), constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=IR).SerializeToString()
        return made


def _raw(tensor: Tensor) -> bytes:
    raw: bytes = tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tobytes()
    return raw


def _at_least_one(outer: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(size, 1) for size in outer) or (1,)


LINEAR_LAYOUTS = {"x": IN_ROWS, "packed_weight": IN_ROWS, "bias": IN_ROWS}


def _fit_linear(case: LinearCase) -> LinearCase:
    wanted: LinearCase = fitted(case, FLOATS, LINEAR_LAYOUTS, outer=_at_least_one(case.outer), bias="")
    return wanted


@adapts(
    "packed_linear",
    limits={
        "dtype float32 or float16 (there is no other kernel on the CPU)": lambda case: case.dtype not in FLOATS,
        "no bias (another operator adds it)": lambda case: case.bias != "",
        "at least one row": lambda case: 0 in case.outer,
        "contiguous tensors (what a session takes)": other_layouts(LINEAR_LAYOUTS),
    },
    fit=_fit_linear,
    silent={"zero_bias": "no bias"},
    timed=lambda given: timed_linear(given),
)
def packed_linear(x: Tensor, packed_weight: Tensor, N: int, K: int, bias: Tensor | None = None) -> Tensor:
    """MatMul"""
    if bias is not None:
        raise Unsupported("no bias")
    return _linear_call(packed_weight, N, K)(x.reshape(-1, K)).reshape(*x.shape[:-1], N)


def _linear_call(packed_weight: Tensor, N: int, K: int) -> Callable[[Tensor], Tensor]:
    weight = unpack_linear_weight(packed_weight, N, K).T
    model = OneOperator("MatMul", {"x": weight.dtype}, {"out": weight.dtype}, ("x", "w"), {"w": weight})
    return lambda x: _filled(model, {"x": x}, x.new_empty(len(x), N))


def _filled(model: OneOperator, given: Mapping[str, Tensor], out: Tensor) -> Tensor:
    model(given, {"out": out})
    return out


def timed_linear(given: Mapping[str, Any]) -> Calls:
    """The product alone: the session packs its constants once."""
    if given["x"].dtype == torch.bfloat16:
        raise Unsupported("no kernel for bfloat16 on the CPU")
    call = _linear_call(given["packed_weight"], given["N"], given["K"])
    return {"MatMul": lambda: call(given["x"])}


BYTE_LAYOUTS = {name: IN_ROWS for name in ("x", "q", "scale", "data", "sums", "w_scale", "bias")}


def _fit_bytes(case: Int8Case) -> Int8Case:
    wanted: Int8Case = fitted(case, (), BYTE_LAYOUTS, outer=_at_least_one(case.outer), symmetric=True)
    return wanted


@adapts(
    "int8_linear",
    limits={
        "symmetric rows (the operator has one zero point for all of them)": lambda case: not case.symmetric,
        "at least one row": lambda case: 0 in case.outer,
        "contiguous tensors (what a session takes)": other_layouts(BYTE_LAYOUTS),
    },
    fit=_fit_bytes,
    absent=lambda: "" if torch.cpu._is_vnni_supported() else "a CPU without VNNI (sums of two products may saturate)",
    timed=lambda given: timed_bytes(given),
)
def int8_linear(**given: Any) -> Tensor:
    """MatMulInteger; torch quantizes the rows, and applies the scales and the bias"""
    if given.get("azp") is not None or not given.get("symmetric", True):
        raise Unsupported("symmetric rows")
    return in_either_form(_bytes_call(given["data"], given["N"], given["K"], given["w_scale"]), given)


def _bytes_call(data: Tensor, N: int, K: int, w_scale: Tensor) -> Callable[..., Tensor]:
    weight = unpack_int8_weight(data, N, K).T
    model = OneOperator("MatMulInteger", {"q": torch.int8}, {"out": torch.int32}, ("q", "w"), {"w": weight})

    def call(q: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        out = _filled(model, {"q": q}, torch.empty(len(q), N, dtype=torch.int32)).mul(scale).mul_(w_scale)
        return (out if bias is None else out.add_(bias)).to(dtype)

    return call


def timed_bytes(given: Mapping[str, Any]) -> Calls:
    """The rows quantized, the product, and the scales."""
    call = _bytes_call(given["data"], given["N"], given["K"], given["w_scale"])
    return {"MatMulInteger": lambda: in_either_form(call, given)}


NIBBLE_LAYOUTS = {name: IN_ROWS for name in ("x", "data", "scales", "zeros", "bias")}


def _fit_nibbles(case: Int4Case) -> Int4Case:
    group = case.group if case.group in GROUPS else 32
    wanted: Int4Case = fitted(
        case, FLOATS, NIBBLE_LAYOUTS, outer=_at_least_one(case.outer), activation="x", group=group,
        K=-(-case.K // group) * group, points="nibble" if case.points == "any" else case.points, bias="",
    )
    return replace(wanted, scale=wanted.dtype)


@adapts(
    "int4_linear",
    limits={
        "dtype float32 or float16 (there is no other kernel on the CPU)": lambda case: case.dtype not in FLOATS,
        "rows as they are (its accuracy_level 4 has scales of its own)": lambda case: case.activation != "x",
        "zero points of four bits (the operator packs them)": lambda case: case.points == "any",
        "whole groups of 16, 32, 64 or 128 columns (checked)": lambda case: case.group not in GROUPS or bool(case.K % case.group),
        "scales of x's dtype, no bias (of other types in the operator)": lambda case: case.scale != case.dtype or case.bias != "",
        "at least one row": lambda case: 0 in case.outer,
        "contiguous tensors (what a session takes)": other_layouts(NIBBLE_LAYOUTS),
    },
    fit=_fit_nibbles,
    silent={"zero_bias": "no bias"},
    timed=lambda given: timed_nibbles(given),
)
def int4_linear(
    x: Tensor, data: Tensor, scales: Tensor, zeros: Tensor, N: int, K: int, group_size: int, bias: Tensor | None = None,
    activation: str = "x",
) -> Tensor:
    """MatMulNBits"""
    if activation != "x" or bias is not None or group_size not in GROUPS or K % group_size:
        raise Unsupported("rows as they are, no bias, whole groups of 16, 32, 64 or 128 columns")
    call = _nibbles_call(x.dtype, *unpack_int4_weight(data, scales, zeros, N, K, group_size))
    return call(x.reshape(-1, K)).reshape(*x.shape[:-1], N)


def _nibbles_call(dtype: torch.dtype, codes: Tensor, scales: Tensor, zeros: Tensor) -> Callable[[Tensor], Tensor]:
    (N, K), groups = codes.shape, scales.shape[1]
    if dtype not in (torch.float32, torch.float16) or int(zeros.max()) > 15:
        raise Unsupported("no kernel for bfloat16 on the CPU; zero points of four bits")
    constants = {"w": _pairs(codes).view(N, groups, -1), "s": scales.to(dtype).flatten(), "z": _pairs(zeros).flatten()}
    attributes = {"K": K, "N": N, "bits": 4, "block_size": K // groups}
    model = OneOperator("MatMulNBits", {"x": dtype}, {"out": dtype}, ("x", "w", "s", "z"), constants, attributes, CONTRIB)
    return lambda x: _filled(model, {"x": x}, x.new_empty(len(x), N))


def _pairs(values: Tensor) -> Tensor:
    """Bytes of two values of four bits along the last dimension, the first in the low half."""
    even = torch.nn.functional.pad(values.to(torch.uint8), (0, values.shape[-1] % 2))
    return even[..., ::2] | even[..., 1::2] << 4


def timed_nibbles(given: Mapping[str, Any]) -> Calls:
    """The product alone: the session packs its constants once."""
    if given["activation"] != "x":
        raise Unsupported("rows as they are")
    weight = (given[name] for name in ("data", "scales", "zeros", "N", "K", "group_size"))
    call = _nibbles_call(given["x"].dtype, *unpack_int4_weight(*weight))
    return {"MatMulNBits": lambda: call(given["x"])}


NORM_LAYOUTS = {name: IN_ROWS for name in ("x", "residual", "weight")}


def _fit_norm(case: NormCase) -> NormCase:
    wanted: NormCase = fitted(
        case, (), NORM_LAYOUTS, width=max(case.width, 1), groups=0, gemma=False, weight="call", outer=_at_least_one(case.outer),
        form="plain" if case.form == "gate" else case.form, in_place=False,
    )
    return wanted


@adapts(
    "rms_norm",
    limits={
        NOT_OFFERED: lambda case: case.form == "gate" or case.groups > 0 or case.gemma or case.weight == "none",
        "a result of its own (a session's)": lambda case: case.in_place,
        "the weight has x's dtype (of the operator)": lambda case: case.weight == "float32" and case.dtype != "float32",
        "at least one element": lambda case: 0 in case.outer or case.width == 0,
        "contiguous tensors (what a session takes)": other_layouts(NORM_LAYOUTS),
    },
    fit=_fit_norm,
    silent={"apart": "rows of a norm follow one another (a limit of the operator)"},
    timed=lambda given: timed_norm(given),
)
def rms_norm(
    x: Tensor, weight: Tensor | None, eps: float = 1e-6, residual: Tensor | None = None, gate: Tensor | None = None,
    group_size: int | None = None, gemma: bool = False,
) -> Tensor:
    """SimplifiedLayerNormalization, and SkipSimplifiedLayerNormalization with a residual"""
    if weight is None or gate is not None or group_size is not None or gemma:
        raise Unsupported(NOT_OFFERED)
    return _norm_call(weight, eps, residual is not None)(x, residual)


def _norm_call(weight: Tensor, eps: float, skip: bool) -> Callable[[Tensor, Tensor | None], Tensor]:
    dtype, constants = weight.dtype, {"w": weight}
    if not skip:
        named = {"epsilon": eps, "axis": -1}
        plain = OneOperator("SimplifiedLayerNormalization", {"x": dtype}, {"out": dtype}, ("x", "w"), constants, named)
        return lambda x, _: _filled(plain, {"x": x.view(-1, x.shape[-1])}, x.new_empty(x.shape).view(-1, x.shape[-1])).view_as(x)
    both = OneOperator(
        "SkipSimplifiedLayerNormalization", {"x": dtype, "r": dtype}, {"out": dtype, "sum": dtype}, ("x", "r", "w"), constants,
        {"epsilon": eps}, CONTRIB, ("out", "", "", "sum"),
    )

    def call(x: Tensor, residual: Tensor | None) -> Tensor:
        assert residual is not None
        rows, added = x.view(-1, x.shape[-1]), residual.view(-1, x.shape[-1])
        out, total = torch.empty_like(rows), torch.empty_like(rows)
        both({"x": rows, "r": added}, {"out": out, "sum": total})
        added.copy_(total)
        return out.view_as(x)

    return call


def timed_norm(given: Mapping[str, Any]) -> Calls:
    """The operators; the sum is copied to where the contract wants it."""
    if given.get("gate") is not None:
        raise Unsupported("no gate (not an argument of it)")
    residual = given.get("residual")
    call = _norm_call(given["weight"], given.get("eps", 1e-6), residual is not None)
    return {"Skip" * (residual is not None) + "SimplifiedLayerNormalization": lambda: call(given["x"], residual)}
