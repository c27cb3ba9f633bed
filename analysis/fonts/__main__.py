"""Make the lean fonts anew, from those that come with matplotlib."""

from pathlib import Path

import matplotlib as mpl
from fontTools import subset

from analysis.fonts import FAMILY, FILES, FOLDER

# Latin, Greek, punctuation, superscripts and currencies, arrows, mathematics.
RANGES = (
    *((0x20, 0x7F), (0xA0, 0x180), (0x391, 0x3CA)),
    *((0x2010, 0x2040), (0x2070, 0x20C0), (0x2190, 0x2200), (0x2200, 0x2270)),
)
DROPPED = {"GSUB", "GDEF", "GPOS", "MATH", "FFTM"}  # kerning stands in `kern`, too


def lean(whole: Path, target: Path) -> None:
    options = subset.Options(hinting=False, layout_features=[], name_IDs=["*"])
    options.drop_tables = sorted({*options.drop_tables, *DROPPED} - {"kern"})
    with subset.load_font(str(whole), options) as font:
        subsetter = subset.Subsetter(options)
        subsetter.populate(unicodes=[code for span in RANGES for code in range(*span)])
        subsetter.subset(font)
        names = {1: FAMILY, 4: target.stem, 6: target.stem, 16: FAMILY}
        for name in font["name"].names:
            name.string = names.get(name.nameID, name.toUnicode())
        font.save(target)


for file, name in FILES.items():
    lean(Path(mpl.get_data_path(), "fonts", "ttf", file), FOLDER / name)
