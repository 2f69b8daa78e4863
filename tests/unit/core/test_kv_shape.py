"""Blocks as a function of tokens, against tables worked out by hand."""

import numpy as np
import pytest

from proxy.core.grid import FloatArray
from proxy.core.kv_shape import (
    GROUPS_MAX_GUESS,
    PLAIN,
    Attention,
    KvGroups,
    KvLayout,
    KvShape,
    LayerKind,
    fitted_layout,
    grouped,
)

FULL = LayerKind(Attention.FULL)
STATE = LayerKind(Attention.STATE)


def window(tokens: int) -> LayerKind:
    return LayerKind(Attention.WINDOW, tokens)


def shape(*groups: KvGroups, block_size: int = 16, caching: bool = True, in_flight: int = 2048) -> KvShape:
    return KvShape(block_size, KvLayout(groups, caching, in_flight))


def table(values: FloatArray) -> list[float]:
    return [float(value) for value in values]


def tokens(*values: float) -> FloatArray:
    return np.asarray(values, dtype=np.float64)


def test_a_plain_model_holds_tokens_over_block_size_rounded_up() -> None:
    plain = KvShape(16)
    assert table(plain.blocks(tokens(0, 1, 16, 17, 32, 33, 1599.5))) == [0, 1, 1, 2, 2, 3, 100]
    assert table(plain.prefill(tokens(17, 5000))) == [2, 313]


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        # 1 + 5 groups; 100 tokens: 7 each. 512: 32 each, the window's cap is 512 / 16 + 1 = 33. 5000: 313 + 5 * 33.
        (512, [6 * 7, 6 * 32, 6 * 33, 313 + 5 * 33]),
        # the cap is 1024 / 16 + 1 = 65: 1024 tokens are below it, 5000 above.
        (1024, [6 * 7, 6 * 32, 6 * 33, 313 + 5 * 65]),
    ],
)
def test_gemma_like(span: int, expected: list[float]) -> None:
    gemma = shape(KvGroups(FULL), KvGroups(window(span), 5))
    assert table(gemma.blocks(tokens(100, 512, 528, 5000))) == expected


def test_mistral_like_is_one_group_that_stops_growing() -> None:
    mistral = shape(KvGroups(window(4096)))
    assert table(mistral.blocks(tokens(100, 4096, 4112, 4113, 30_000))) == [7, 256, 257, 257, 257]


def test_mamba_like() -> None:
    groups = KvGroups(FULL), KvGroups(STATE, 9)
    assert table(shape(*groups, caching=False).blocks(tokens(1, 16, 17, 5000))) == [10, 10, 11, 322]
    assert table(shape(*groups, caching=True).blocks(tokens(1, 16, 17, 5000))) == [10, 10, 20, 331]


def test_llama_4_like() -> None:
    llama = shape(KvGroups(FULL), KvGroups(LayerKind(Attention.CHUNK, 1024), 3))
    assert table(llama.blocks(tokens(100, 1024, 1040, 5000))) == [28, 256, 260, 313 + 3 * 65]


def test_what_a_prefill_has_in_flight_counts_while_it_lasts() -> None:
    gemma = shape(KvGroups(FULL), KvGroups(window(1024), 5), in_flight=2048)
    # (1024 - 2 + 2048) / 16 rounded up, and one: 193 blocks in each window group.
    assert table(gemma.prefill(tokens(100, 3088, 5000))) == [42, 6 * 193, 313 + 5 * 193]
    assert table(shape(KvGroups(STATE, 3)).prefill(tokens(5000))) == [6]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([(FULL, 32)], {FULL: 1}),
        ([(window(4096), 32)], {window(4096): 1}),
        ([(FULL, 10), (window(1024), 52)], {FULL: 1, window(1024): 6}),  # 52 / 10 rounded up
        ([(FULL, 8), (window(1024), 40)], {FULL: 1, window(1024): 5}),
        ([(FULL, 12), (window(128), 12)], {FULL: 1, window(128): 1}),
        ([(FULL, 13), (window(128), 12)], {FULL: 1, window(128): 1}),  # 13 < 1.5 * 12: padded, not split into 2 + 1
        ([(FULL, 18), (window(128), 12)], {FULL: 2, window(128): 1}),  # 18 is not below 1.5 * 12
        ([(FULL, 2), (STATE, 7), (FULL, 2)], {FULL: 1, STATE: 2}),
    ],
)
def test_groups_have_equally_many_layers(layers: list[tuple[LayerKind, int]], expected: dict[LayerKind, int]) -> None:
    assert {groups.kind: groups.count for groups in grouped(layers)} == expected


def test_a_model_without_layers_has_no_groups() -> None:
    with pytest.raises(ValueError, match="holds no KV blocks"):
        grouped([(FULL, 0)])


def test_copies_share_the_full_blocks_before_the_last_prompt_token() -> None:
    plain = KvShape(16)
    # reference vllm.md §10.1: n = 4, P = 100 holds 7 + 3 blocks
    assert table(plain.held(tokens(100), tokens(100), tokens(4), tokens(1))) == [10]
    assert table(plain.held(tokens(100), tokens(100), tokens(4), tokens(0))) == [28]
    assert table(plain.held(tokens(48), tokens(48), tokens(2), tokens(1))) == [4]  # 2 of 3 blocks hit, never the last token's


def test_copies_share_nothing_without_prefix_caching() -> None:
    assert table(KvShape(16, KvLayout(prefix_caching=False)).held(tokens(100), tokens(100), tokens(4), tokens(1))) == [28]


def test_a_window_drops_what_its_copies_shared() -> None:
    gemma = shape(KvGroups(FULL), KvGroups(window(128)))
    # 6 full prompt blocks are shared. At 160 tokens the window has dropped (160 - 128) / 16 = 2 of them; it holds 9 of 10.
    assert table(gemma.shared(tokens(100), tokens(100, 160, 1000))) == [12, 6 + 4, 6]
    assert table(gemma.held(tokens(100), tokens(160), tokens(3), tokens(1))) == [10 + 3 * (10 + 9 - 10)]


def test_states_are_never_shared() -> None:
    assert table(shape(KvGroups(STATE, 3)).held(tokens(100), tokens(100), tokens(2), tokens(1))) == [12]


def test_prefixes_are_only_certain_to_be_found_on_plain_models() -> None:
    assert KvLayout().shares_runs
    assert not KvLayout(prefix_caching=False).shares_runs
    assert not KvLayout((PLAIN, KvGroups(window(128)))).shares_runs
    assert not fitted_layout().shares_runs


def test_unknown_groups_count_as_full_ones_up_to_what_the_engine_told() -> None:
    assert table(KvShape(16, fitted_layout()).blocks(tokens(100, 1000))) == [GROUPS_MAX_GUESS * 7, GROUPS_MAX_GUESS * 63]
    assert table(KvShape(16, fitted_layout(90.0)).blocks(tokens(100, 160, 1600))) == [7 + 63, 10 + 90, 100 + 90]
    assert table(KvShape(16, fitted_layout(-5.0)).blocks(tokens(100))) == [7]


def test_a_learned_excess_is_the_largest_that_is_possible() -> None:
    learned = KvShape(16, fitted_layout()).with_excess(((1, 20.0), (5, 3.0)))
    assert table(learned.blocks(tokens(16, 160, 1600))) == [1 + 5, 10 + 15, 100 + 20]


def test_any_shape_of_array() -> None:
    many = shape(KvGroups(FULL), KvGroups(window(128)))
    grid = np.arange(12.0).reshape(3, 4) * 100.0
    assert (many.blocks(grid).ravel() == many.blocks(grid.ravel())).all()
    assert many.held(grid[:, :1], grid, np.full((3, 1), 2.0), np.ones((3, 1))).shape == (3, 4)
