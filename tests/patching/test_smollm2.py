"""anchorlens.patching beside TransformerLens on real weights."""

import random
import warnings

import pandas as pd
import pytest
import torch
import transformer_lens.patching as theirs

from anchorlens import patching as ours
from tests.tiers import ON_REQUEST

# The others call these, or patch direct paths (tests/patching/test_direct_path.py).
BASE = sorted(
    name
    for name in ours.__all__
    if name.startswith("get_act_patch_")
    and not name.endswith("_every")
    and "direct_path" not in name
)
# Two prompts for one function of each site: cells of heads and positions take half a minute with two.
_ONE_OF_A_KIND = ("head_out_by_pos", "head_k_all_pos", "pattern_all_pos")
CASES = [
    pytest.param(name, n, marks=() if name.endswith(_ONE_OF_A_KIND) else ON_REQUEST)
    if "attn_head" in name
    else (name, n)
    for name in BASE
    for n in ((1,) if "attn_head" in name else (2,))
]


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "n_prompts"), CASES)
def test_every_function_on_smollm2(smollm2, name, n_prompts):
    """The whole grid here, some cells there: TransformerLens runs a forward pass for each.

    The prompts have large effects at every site: float32 rounds logits by 1e-5, whatever the range.
    """
    story = "When John met Mary, {} gave a drink to"
    names = ["Mary", "John"]
    # The second prompt has the names the other way round.
    clean, corrupted = (
        smollm2.to_tokens([story.format(who) for who in some], prepend_bos=False)[:n_prompts]
        for some in (names, names[::-1])
    )
    mary, john = (smollm2.to_single_token(f" {who}") for who in names)

    def metric(logits):
        gap = logits[:, -1, john] - logits[:, -1, mary]
        return gap[0] - gap[1:].sum()

    part, axes = getattr(theirs, name).keywords, getattr(theirs, name).keywords["index_axis_names"]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")  # no fallback to full forward passes
        cache = smollm2.run_with_cache(clean)[1]
        found = getattr(ours, name)(smollm2, corrupted, cache, metric)
        cells = random.Random(0).sample(
            [tuple(cell) for cell in torch.ones_like(found).nonzero().tolist()], 4
        )
        rest = {key: value for key, value in part.items() if key != "index_axis_names"}
        frame = pd.DataFrame(cells, columns=list(axes))
        wanted = theirs.generic_activation_patch(
            smollm2, corrupted, cache, metric, **rest, index_df=frame
        )
    gap = (torch.stack([found[cell] for cell in cells]) - wanted).abs().max()
    assert float(gap) <= 1e-4 * float(found.max() - found.min())
