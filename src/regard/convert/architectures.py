"""All foreign architectures by the name that their `config.json` has in `model_type`.

Of several that compute the same for a model that is written, the first is taken.
"""

from __future__ import annotations

from regard.convert import bart
from regard.convert.mapping import Architecture

ARCHITECTURES: dict[str, Architecture] = {each.name: each for each in bart.ARCHITECTURES}
