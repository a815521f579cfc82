"""Draw the pictures of the docs from runs, as ``anchorlens figure`` does, in 256 colours to keep
the repository small.

    # run of `make demo`
    python docs/make_pictures.py runs/demo docs/demo.png
    # command in docs/knockout.md
    python docs/make_pictures.py runs/ko-matched docs/knockout.png
    python examples/selection_effect.py --out runs/selection.png
    python docs/make_pictures.py runs/selection.png docs/selection.png

Needs Pillow (``pip install pillow``) and the requirements of PNG output: ``pip install
'anchorlens[images]'`` and Chromium.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from anchorlens.figures.curves import plot_curves
from anchorlens.figures.export import save_figure
from anchorlens.figures.palette import dataset_styles, rgb_of

# Colours that are kept exactly: curves of every data set, and text.
_STYLES = dataset_styles(["popqa", "triviaqa", "hotpotqa", "nq"]).values()
EXACT = [
    rgb_of(c)
    for c in ("#ffffff", "#222222", *(one for s in _STYLES for one in (s.question, s.answer)))
]


def reduced(path: Path) -> Any:
    """Return a picture in 256 colours: the exact ones, and the best fit for bands and edges of
    letters.
    """
    from PIL import Image

    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    fitted = picture.quantize(256 - len(EXACT), dither=Image.Dither.NONE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour in EXACT for part in colour] + fitted)
    places = np.array(picture.quantize(palette=palette, dither=Image.Dither.NONE))
    for place, colour in enumerate(EXACT):  # Pillow uses a near colour
        places[(np.asarray(picture) == colour).all(axis=-1)] = place
    few = Image.fromarray(places, "P")
    few.putpalette(palette.getpalette() or [])
    return few


def main() -> None:
    """Draw one picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="a run directory, or a PNG")
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--scale", type=float, default=1.5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        drawn = args.source
        if drawn.is_dir():
            drawn = save_figure(
                plot_curves(drawn), Path(folder) / "figure.png", width=args.width, scale=args.scale
            )
        reduced(drawn).save(args.out, optimize=True)


if __name__ == "__main__":
    main()
