"""What tests ask of several leases."""

import numpy as np


def rows_of(leases):
    return np.array([lease.row for lease in leases], np.intp)


def marks(lease):
    return lease.protected, lease.committed, lease.allocated
