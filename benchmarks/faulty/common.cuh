// What all kernels here share: a tile, a kernel's arguments, and short words for what they do.
#pragma once
#include <cuda.h>
#include <cuda/ptx>
#include <cuda_fp16.h>

#include <cstdint>

namespace ptx = cuda::ptx;

// Tiles of a block; slots of its ring; a tile's rows, columns and floats; lanes of most blocks.
constexpr int STEPS = 6, SLOTS = 2, ROWS = 32, COLUMNS = 64, TILE = ROWS * COLUMNS, LANES = 128;

struct alignas(128) Tile {
  float at[TILE];
};

using Barrier = std::uint64_t;

// A block finds its part of `x` and `out` by its index.
struct Arguments {
  CUtensorMap x_map, out_map;  // of rows of COLUMNS floats; a box is a tile
  const float* x;
  float* out;
  float* between;   // a tile for each block, which another block or kernel reads; at first zeros
  unsigned* flags;  // one for each block; at first zeros
};

// An instruction that sm_90a alone has. With -arch=sm_90a, nvcc also compiles for compute_90, which
// lacks it, and which no Hopper GPU then runs.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SM_90A(...) asm volatile(__VA_ARGS__)
#else
#define SM_90A(...)
#endif

// A delay of up to twice this time, which no access to memory crosses.
__device__ inline void nap(int ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns) : "memory"); }

// Makes barriers. A call of `commit` must follow.
template <int N>
__device__ void make(Barrier (&barriers)[N], int arrivals) {
  if (threadIdx.x == 0)
    for (Barrier& each : barriers) ptx::mbarrier_init(&each, arrivals);
}

// The block's writes to shared memory come before what TMA and the tensor core do there next.
__device__ inline void commit() {
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
}

// Waits until the barrier's phase 0, 1, ... has ended.
__device__ inline void wait(Barrier& barrier, int phase) {
  while (!ptx::mbarrier_try_wait_parity(&barrier, phase & 1)) continue;
}

// One arrival for a warp: its accesses come before what waits for this phase.
__device__ inline void arrive(Barrier& barrier) {
  ptx::fence_proxy_async(ptx::space_shared);
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&barrier);
}

// An arrival that makes the phase last until so many bytes have landed too.
__device__ inline void expect(Barrier& barrier, int bytes) {
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier,
                                 bytes);
}

// TMA brings a box of `x`, whose first row this is; its bytes count at the barrier.
__device__ inline void copy(void* box, const Arguments& args, int row, Barrier& landed) {
  const int column_and_row[] = {0, row};
  ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, box, &args.x_map,
                            column_and_row, &landed);
}

// TMA brings the tile of this number.
__device__ inline void load(Tile& tile, const Arguments& args, int number, Barrier& landed) {
  expect(landed, sizeof(Tile));
  copy(&tile, args, number * ROWS, landed);
}

// TMA stores a tile as the output's tile of this number.
__device__ inline void store(const Tile& tile, const Arguments& args, int number) {
  const int column_and_row[] = {0, number * ROWS};
  ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &args.out_map, column_and_row,
                            &tile);
  ptx::cp_async_bulk_commit_group();
}

// Waits until this lane's stores are done.
__device__ inline void wait_for_stores() { ptx::cp_async_bulk_wait_group(ptx::n32_t<0>()); }
