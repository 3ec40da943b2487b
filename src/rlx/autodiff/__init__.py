from rlx.autodiff.batching import batch_graph
from rlx.autodiff.forward import push_forward
from rlx.autodiff.reverse import pull_back
from rlx.ops.body_transforms import Engines, set_engines

set_engines(Engines(push_forward, pull_back, batch_graph))
