"""Memory for what comes back, used again once nobody looks at it.

Each step has an activation and a gradient, and fresh memory of a megabyte costs more to be given
than to be filled: see :class:`~entrepot.mediums.spare.Spare`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from entrepot.mediums.spare import LEAST_NBYTES, Spare

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Recycling(Spare):
    """Copies of arrays, in memory of earlier copies that are gone. From any thread."""

    def copy(self, array: NDArray[Any]) -> NDArray[Any]:
        """An array of its own. Its memory comes back once all that was made of it is gone."""
        if array.nbytes < LEAST_NBYTES:
            return array.copy()
        made: NDArray[Any] = np.ndarray(array.shape, array.dtype, self.take(array.nbytes))
        made[...] = array
        return made
