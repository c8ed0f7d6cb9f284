"""Whether files hold the tensors that their own config asks for: told from headers, before anything is read.

Knows names and shapes; which ones a config asks for is a family's matter.
"""

from collections.abc import Mapping

from strata.errors import WeightFileError
from strata.weights.opening import ModelSource

Shapes = Mapping[str, tuple[int, ...]]  # by canonical name


def require_fit(source: ModelSource, shapes: Shapes) -> None:
    """Refuse files that lack a tensor which the config asks for, or hold it in another shape."""
    held = source.names()
    missing = [name for name in shapes if name not in held]
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise WeightFileError(
            f"{source.directory}: {source.config_origin} asks for tensor {missing[0]}{more}, the files do not hold it"
        )
    require_shapes(source, shapes)


def require_shapes(source: ModelSource, shapes: Shapes) -> None:
    """Refuse files that hold a tensor in another shape than the config means; what they lack is no matter here."""
    held = source.names()
    for name, shape in shapes.items():
        if name in held and source.shape(name) != shape:
            raise WeightFileError(
                f"{source.directory}: tensor {name} has the shape {list(source.shape(name))}, {source.config_origin} "
                f"means {list(shape)}"
            )
