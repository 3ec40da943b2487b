from rlx.sparse import kernels_products as kernels_products
from rlx.sparse import ops_products as ops_products
