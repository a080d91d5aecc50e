// The Walsh-Hadamard transform of pieces of a row.
#pragma once

namespace phloem {

// In place, for each `block` consecutive of k elements: x H / sqrt(block), H being Sylvester's
// matrix of that size, a power of two. Elements meet at the largest distance first.
void hadamard(float* x, int k, int block);

}  // namespace phloem
