"""The published test cases of the ONNX operators that have a counterpart here: inputs, attributes and expected values.

https://onnx.ai/onnx/operators: each operator of a case is told in our terms here, which only rearranges data, and
computed by our functions. An attribute or input that is not told fails its case.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

pytest.importorskip("onnx")

from onnx import NodeProto, helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase as Case

from regard.model import masks
from regard.model.attention import attention
from regard.model.cache import LayerCache
from regard.model.feed_forward import FEED_FORWARD
from regard.model.fused import fused_attention
from regard.model.masks import Mask, PlaceMask, Rule
from regard.model.norms import NORMS
from regard.model.places import Places, run
from regard.model.positions import Bias
from regard.model.reference import reference_attention
from regard.model.rotary import Turn, rotate
from regard.model.settings import ModelSettings

Outputs = tuple[Tensor, ...]

PUBLISHED = {"Attention": 93, "RotaryEmbedding": 8, "LayerNormalization": 19, "RMSNormalization": 19, "Gelu": 4}
"""How many cases onnx 1.23 has."""

ROUNDING = {torch.float32: (1e-5, 1e-6), torch.float16: (2**-9, 1e-7), torch.bfloat16: (2**-6, 1e-7)}
"""Relative and absolute tolerance: for float32 stricter than the cases ask, else two units in the last place.

The published values of half precision come from scores and weights that were rounded to it, ours are in float32.
"""


def published() -> list[Case]:
    """The cases of one operator each; "expanded" ones repeat them as graphs of elementary operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # infinities that other operators' cases are about
        cases = [case for case in collect_testcases() if "_expanded" not in case.name]
    return [case for case in cases if node_of(case).op_type in PUBLISHED]


def node_of(case: Case) -> NodeProto:
    assert case.model is not None
    node: NodeProto = case.model.graph.node[0]
    return node


def assert_close(result: Tensor, expected: Tensor) -> None:
    relative, absolute = ROUNDING[expected.dtype]
    torch.testing.assert_close(result, expected, rtol=relative, atol=absolute)


def tensor(array: Any) -> Tensor:
    """A tensor of numpy's array; numpy has bfloat16 from elsewhere, which torch does not read."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype("float32")).bfloat16()
    return torch.from_numpy(array.copy())


def named(names: list[str], arrays: Any) -> list[Tensor | None]:
    """The tensors of a case; an input or output that has no name is left out."""
    given = iter(arrays)
    return [tensor(next(given)) if name else None for name in names]


def split(x: Tensor, heads: int | None) -> Tensor:
    """Heads beside each other as a dimension of their own."""
    return x if heads is None else x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def joined(x_BHTE: Tensor, heads: int | None) -> Tensor:
    return x_BHTE if heads is None else x_BHTE.transpose(1, 2).flatten(2)


def window(left: int, right: int, is_causal: bool) -> Rule:
    """Keys from `left` before to `right` after a query, -1 for any."""
    if is_causal and right == -1:
        return masks.window(ModelSettings(window=left + 1))
    far = 10**6
    before, after = (far if reach == -1 else reach for reach in (left, right))
    return lambda query, key: (key.position >= query.position - before) & (key.position <= query.position + after)


def place_mask(queries: Places, keys: Places, is_causal: bool, left: int, right: int) -> Mask | None:
    rules: list[Rule] = []
    if is_causal:
        rules.append(masks.not_later)
    if (left, right) != (-1, -1):
        rules.append(window(left, right, is_causal))
    if keys.real is not None:
        rules.append(masks.is_real)
    square = rules == [masks.not_later] and queries.start == keys.start and len(queries) == len(keys)
    return PlaceMask(masks.every(*rules), queries, keys, is_causal=square) if rules else None


def mask_and_bias(given: Tensor | None, keys: int) -> tuple[Mask | None, Bias | None]:
    """`attn_mask`: what may be seen, or what is added; keys beyond its end are hidden."""
    if given is None:
        return None, None
    is_bool = given.dtype == torch.bool
    missing = keys - given.shape[-1]
    given = functional.pad(given, (0, missing), value=False if is_bool else float("-inf"))
    given_BHTS = given[(None,) * (4 - given.dim())]
    if is_bool:
        return Mask(given_BHTS), None
    hidden = given_BHTS == float("-inf")
    return Mask(~hidden) if bool(hidden.any()) else None, Bias(given_BHTS.masked_fill(hidden, 0.0))


def attention_operator(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    is_causal: int = 0,
    left_window_size: int = -1,
    right_window_size: int = -1,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    softmax_precision: int | None = None,  # at most that of ours
) -> Outputs:
    query = split(query, q_num_heads)
    cache = LayerCache()
    if past_key is not None and past_value is not None:
        cache.append(past_key, past_value)
    past = 0 if past_key is None else past_key.shape[2]
    key, value = cache.append(split(key, kv_num_heads), split(value, kv_num_heads))

    queries, keys = run(past, query.shape[2]), run(0, key.shape[2])
    if nonpad_kv_seqlen is not None:
        # The queries stand at the end of what each row holds.
        lengths_B1 = nonpad_kv_seqlen[:, None]
        queries = Places(lengths_B1 - len(queries) + torch.arange(len(queries)))
        keys = Places(keys.position, real=keys.position < lengths_B1)
    by_place = place_mask(queries, keys, bool(is_causal), left_window_size, right_window_size)
    given, bias = mask_and_bias(attn_mask, len(keys))
    mask = given & by_place if given is not None else by_place

    values = reference_attention(query, key, value, mask, bias, scale=scale, softcap=softcap)
    for execution in (attention, fused_attention):
        output = execution(query, key, value, mask, bias, scale=scale, softcap=softcap)
        assert_close(output, values.output_BHTE)
    inside = (
        lambda: reference_attention(query, key, value, scale=scale).scores_BHTS,
        lambda: reference_attention(query, key, value, scale=scale, softcap=softcap).scores_BHTS,
        lambda: values.scores_BHTS,
        lambda: values.weights_BHTS,
    )[qk_matmul_output_mode]()
    return joined(values.output_BHTE, q_num_heads), key, value, inside.to(query.dtype)


def rotary_operator(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Outputs:
    if position_ids is not None:
        cos, sin = cos[position_ids], sin[position_ids]
    assert rotary_embedding_dim in (0, 2 * cos.shape[-1])
    turn = Turn(cos[:, None], sin[:, None])
    return (joined(rotate(split(x, num_heads), turn, "interleaved" if interleaved else "halves"), num_heads),)


def normalised(kind: str, x: Tensor, state: dict[str, Tensor], axis: int, epsilon: float) -> Tensor:
    """`x` normalised over its axes from `axis` on, as vectors of all that they hold."""
    vectors = x.flatten(axis)
    module = NORMS[kind](vectors.shape[-1], epsilon)
    if state:
        module.load_state_dict({name: parameter.flatten() for name, parameter in state.items()})
    with torch.no_grad():
        result: Tensor = module(vectors)
    return result.view_as(x)


def layer_norm_operator(x: Tensor, weight: Tensor, bias: Tensor, *, axis: int = -1, epsilon: float = 1e-5) -> Outputs:
    # Mean and slope are read off what the norm does: without gain and bias it maps x to (x - mean) * slope.
    over = tuple(range(axis % x.dim(), x.dim()))
    plain = normalised("layer", x, {}, axis, epsilon)
    high, low = x.amax(over, keepdim=True), x.amin(over, keepdim=True)
    slope = (plain.amax(over, keepdim=True) - plain.amin(over, keepdim=True)) / (high - low)
    mean = high - plain.amax(over, keepdim=True) / slope
    return normalised("layer", x, {"weight": weight, "bias": bias}, axis, epsilon), mean, slope


def rms_norm_operator(x: Tensor, weight: Tensor, *, axis: int = -1, epsilon: float = 1e-5) -> Outputs:
    return (normalised("rms", x, {"weight": weight}, axis, epsilon),)


def gelu_operator(x: Tensor, *, approximate: bytes = b"none") -> Outputs:
    return (FEED_FORWARD[{b"none": "gelu", b"tanh": "gelu-tanh"}[approximate]].function(x),)


OPERATORS: dict[str, Callable[..., Outputs]] = {
    "Attention": attention_operator,
    "RotaryEmbedding": rotary_operator,
    "LayerNormalization": layer_norm_operator,
    "RMSNormalization": rms_norm_operator,
    "Gelu": gelu_operator,
}

CASES = published()


def test_no_case_is_missing() -> None:
    counted = Counter(node_of(case).op_type for case in CASES)
    assert all(counted[operator] >= count for operator, count in PUBLISHED.items()), counted


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_published_values(case: Case) -> None:
    node = node_of(case)
    assert case.data_sets
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    for inputs, outputs in case.data_sets:
        expected = named(list(node.output), outputs)
        results = OPERATORS[node.op_type](*named(list(node.input), inputs), **attributes)
        assert len(results) >= len(expected)
        for result, value in zip(results, expected, strict=False):
            if value is not None:
                assert_close(result, value)
