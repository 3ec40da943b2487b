"""What each op means. One class per op; `rlx.ir.op` says what a class gives, `rlx.ops.unary` is an example."""

from rlx.ir.leaves import Constant as Constant
from rlx.ir.leaves import Input as Input
from rlx.ir.leaves import Param as Param
from rlx.ir.leaves import Project as Project
from rlx.ir.op import NoRule as NoRule
from rlx.ir.op import Op as Op
from rlx.ir.op import kind_of as kind_of
from rlx.ops import tensor_methods
from rlx.ops.arithmetic import *
from rlx.ops.contraction import *
from rlx.ops.control import *
from rlx.ops.conversion import *
from rlx.ops.custom import *
from rlx.ops.custom_functions import *
from rlx.ops.dynamic_slices import *
from rlx.ops.einsum_notation import *
from rlx.ops.indexing import *
from rlx.ops.movement import *
from rlx.ops.rearrange import *
from rlx.ops.scan_gradients import *
from rlx.ops.scans import *
from rlx.ops.selection import *
from rlx.ops.subscript import *
from rlx.ops.unary import *

tensor_methods.install()
