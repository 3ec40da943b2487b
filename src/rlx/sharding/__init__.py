"""How arrays are divided over devices: meshes, and what lies where on them. Plain values; no device is needed.

    mesh = rlx.Mesh((4, 2), ("x", "y"))                       # eight devices in four rows
    rows = rlx.NamedSharding(mesh, rlx.PartitionSpec("x"))    # axis 0 in four parts, each on the two devices of a row
    rows.shard_shape((16, 3))                                 # (4, 3)

Programs carry shardings as attributes of ops (`rlx.ops.parallel.sharding_constraint`), XLA divides the work
(`rlx.backends.xla`), and `rlx.distributed` has ready layouts, many processes and checkpoints.
"""

from __future__ import annotations

from rlx.sharding.mesh import Mesh as Mesh
from rlx.sharding.mesh import MeshDevice as MeshDevice
from rlx.sharding.named_sharding import NamedSharding as NamedSharding
from rlx.sharding.partition_spec import UNCONSTRAINED as UNCONSTRAINED
from rlx.sharding.partition_spec import P as P
from rlx.sharding.partition_spec import PartitionSpec as PartitionSpec
