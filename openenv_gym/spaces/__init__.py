"""Describe a Gymnasium space as plain data and build it again; nothing is ever pickled or evaluated.

* `openenv_gym.spaces.parts` names the parts of a space and compares spaces.
* `openenv_gym.spaces.descriptions` turns a space into plain data and back.
* `openenv_gym.spaces.fields` checks such data, which a stranger may have sent.
* `openenv_gym.spaces.generators` has the state of its random generators.
* `openenv_gym.spaces.trimming` leaves out what need not travel, and changes dtypes.
* `openenv_gym.spaces.json_space` has the one space that Gymnasium lacks: `Json`.

Only gymnasium's own classes and `Json` are known. A subclass may behave differently: it counts as one opaque part, and
can't be described, since a peer would get something else.
"""

from openenv_gym.spaces.descriptions import build, describe
from openenv_gym.spaces.fields import MAX_CHILDREN, MAX_DEPTH, MAX_ELEMENTS
from openenv_gym.spaces.generators import generators, restore_generators
from openenv_gym.spaces.json_space import Json
from openenv_gym.spaces.parts import Leaf, alike, fits, leaf_dtype, leaf_shape, leaves, path_name, same
from openenv_gym.spaces.trimming import trim

__all__ = [
    "MAX_CHILDREN",
    "MAX_DEPTH",
    "MAX_ELEMENTS",
    "Json",
    "Leaf",
    "alike",
    "build",
    "describe",
    "fits",
    "generators",
    "leaf_dtype",
    "leaf_shape",
    "leaves",
    "path_name",
    "restore_generators",
    "same",
    "trim",
]
