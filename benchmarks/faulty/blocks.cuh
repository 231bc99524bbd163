// Faults that only CUDA C++ can say: among a block's warps, among blocks, and among kernels; and
// plain ones that CUDA's tools are made for.
#pragma once
#include <cooperative_groups.h>

#include "common.cuh"

// Among a block's warps.

// Each warp reads what the next one writes, which is later. A lane `meets` the others in between.
__device__ inline void pass_on(const Arguments& args, bool meets) {
  __shared__ Tile tile;
  nap(threadIdx.x / 32 * 2000);
  for (int i = threadIdx.x; i < TILE; i += LANES)
    tile.at[i] = args.x[blockIdx.x * TILE + i] + 1;
  if (meets) __syncthreads();
  for (int i = (threadIdx.x + 32) % LANES; i < TILE; i += LANES)
    args.out[blockIdx.x * TILE + i] = tile.at[i];
}

// The barrier between writes and reads is not there.
template <bool FIXED>
__global__ void missing_barrier(const __grid_constant__ Arguments args) {
  pass_on(args, FIXED);
}

// Two warps of four leave the barrier out.
template <bool FIXED>
__global__ void barrier_of_some_warps(const __grid_constant__ Arguments args) {
  pass_on(args, FIXED || threadIdx.x >= LANES / 2);
}

// Half of each warp's lanes leave the barrier out.
template <bool FIXED>
__global__ void barrier_of_some_lanes(const __grid_constant__ Arguments args) {
  pass_on(args, FIXED || threadIdx.x % 32 < 16);
}

// Waits at the hardware's barrier of this number until so many lanes are there.
__device__ inline void sync(int number, int lanes) {
  asm volatile("barrier.sync %0, %1;" ::"r"(number), "r"(lanes) : "memory");
}

// Writers and readers meet at a barrier that expects only as many lanes as the readers are.
template <bool FIXED>
__global__ void named_barrier(const __grid_constant__ Arguments args) {
  constexpr int GROUP = LANES / 2;
  __shared__ Tile tile;
  const bool writes = threadIdx.x < GROUP;
  const int lane = threadIdx.x % GROUP;
  if (writes) {
    nap(5000);
    for (int i = lane; i < TILE; i += GROUP) tile.at[i] = args.x[blockIdx.x * TILE + i] + 1;
  }
  sync(1, FIXED ? LANES : GROUP);
  for (int i = lane; !writes && i < TILE; i += GROUP)
    args.out[blockIdx.x * TILE + i] = tile.at[i];
}

// Two groups of two warps use one barrier number, so a warp may meet one of the other group. Each
// warp reads what the other of its group writes; the second one is late.
template <bool FIXED>
__global__ void named_barrier_shared(const __grid_constant__ Arguments args) {
  constexpr int GROUP = LANES / 2;
  __shared__ Tile tile;
  const int group = threadIdx.x / GROUP, lane = threadIdx.x % GROUP, other = lane ^ 32;
  nap(lane / 32 * 5000);
  for (int i = group * GROUP; i < TILE; i += LANES)
    tile.at[i + lane] = args.x[blockIdx.x * TILE + i + lane] + 1;
  sync(FIXED ? 1 + group : 1, GROUP);
  for (int i = group * GROUP; i < TILE; i += LANES)
    args.out[blockIdx.x * TILE + i + other] = tile.at[i + other];
}

// Two groups of warps ask for more registers, but the third gives none back.
template <bool FIXED>
__global__ void __launch_bounds__(3 * LANES, 1)
    register_reallocation(const __grid_constant__ Arguments args) {
  if (threadIdx.x < LANES) {
    if (FIXED) SM_90A("setmaxnreg.dec.sync.aligned.u32 24;");
  } else {
    SM_90A("setmaxnreg.inc.sync.aligned.u32 240;");
    for (int i = threadIdx.x - LANES; i < TILE; i += 2 * LANES)
      args.out[blockIdx.x * TILE + i] = args.x[blockIdx.x * TILE + i] + 1;
  }
  __syncthreads();
}

// Among the blocks of a cluster.

// Each of two blocks writes a tile into its shared memory, and reads the other's.
template <bool WRITTEN, bool READ>
__device__ void exchange(const Arguments& args) {
  __shared__ Tile tile;
  const auto cluster = cooperative_groups::this_cluster();
  const unsigned rank = cluster.block_rank(), peer = rank ^ 1;
  cluster.sync();  // both blocks have started
  nap(rank * 5000);
  for (int i = threadIdx.x; i < TILE; i += LANES)
    tile.at[i] = args.x[blockIdx.x * TILE + i] + 1;
  if (WRITTEN) cluster.sync();
  const Tile& its = *cluster.map_shared_rank(&tile, peer);
  for (int i = threadIdx.x; i < TILE; i += LANES) {
    nap(peer * 1000);
    args.out[(blockIdx.x ^ 1) * TILE + i] = its.at[i];
  }
  if (READ) cluster.sync();
}

// A block reads its peer's shared memory without asking whether the peer has written it. The
// second block of a cluster writes late.
template <bool FIXED>
__global__ void __cluster_dims__(2) cluster_peer(const __grid_constant__ Arguments args) {
  exchange<FIXED, true>(args);
}

// A block ends while its peer still reads its shared memory. The first block of a cluster reads
// slowly.
template <bool FIXED>
__global__ void __cluster_dims__(2) cluster_peer_exit(const __grid_constant__ Arguments args) {
  exchange<true, FIXED>(args);
}

// Among the blocks of a grid.

// Two blocks write the same rows of the output.
template <bool FIXED>
__global__ void blocks_of_the_grid(const __grid_constant__ Arguments args) {
  const int place = FIXED ? blockIdx.x : blockIdx.x / 2 * 2;
  for (int i = threadIdx.x; i < TILE; i += LANES)
    args.out[place * TILE + i] = args.x[blockIdx.x * TILE + i] + 1;
}

// A block goes on to the next one's first row, and the last block beyond the end.
template <bool FIXED>
__global__ void out_of_bounds(const __grid_constant__ Arguments args) {
  for (int i = threadIdx.x; i < (FIXED ? TILE : TILE + COLUMNS); i += LANES)
    args.out[blockIdx.x * TILE + i] = args.x[blockIdx.x * TILE + i] + 1;
}

// Flags between blocks count. Where they are ORDERED, a writer releases what its block did before,
// and a reader acquires it.
template <bool ORDERED>
__device__ void set(unsigned& flag, unsigned count) {
  if (ORDERED)
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(&flag), "r"(count) : "memory");
  else
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(&flag), "r"(count) : "memory");
}

template <bool ORDERED>
__device__ void await(unsigned& flag, unsigned count) {
  for (unsigned seen = 0; seen < count;)
    if (ORDERED)
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(&flag) : "memory");
    else
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(&flag) : "memory");
}

// Of each two blocks, the first leaves their tiles plus 1 in one place, one after the other, and
// the second stores them. The second tile comes where the L1 cache of its reader has the first.
template <bool ORDERED, bool SET>
__device__ void hand_over(const Arguments& args) {
  const int pair = blockIdx.x / 2 * 2;
  const bool writes = blockIdx.x == pair, speaks = threadIdx.x == 0;
  unsigned &full = args.flags[pair], &empty = args.flags[pair + 1];
  float* place = args.between + pair * TILE;
  for (int k = 0; k < 2; ++k) {
    const float* x = args.x + (pair + k) * TILE;
    float* out = args.out + (pair + k) * TILE;
    if (writes) {
      if (speaks) await<ORDERED>(empty, k);
      __syncthreads();
      for (int i = threadIdx.x; i < TILE; i += LANES) place[i] = x[i] + 1;
      __syncthreads();
      if (speaks && SET) set<ORDERED>(full, k + 1);
    } else {
      if (speaks) await<ORDERED>(full, k + 1);
      __syncthreads();
      for (int i = threadIdx.x; i < TILE; i += LANES) out[i] = place[i];
      __syncthreads();
      if (speaks) set<ORDERED>(empty, k + 1);
    }
  }
}

// Flags in global memory say that a tile is there or was read, but order nothing else.
template <bool FIXED>
__global__ void device_semaphore(const __grid_constant__ Arguments args) {
  hand_over<FIXED, true>(args);
}

// A block waits for a flag in global memory that nobody sets.
template <bool FIXED>
__global__ void device_semaphore_never_set(const __grid_constant__ Arguments args) {
  hand_over<true, FIXED>(args);
}

// Among kernels.

// The first kernel: lets the second one start at once, and leaves x late.
__global__ void leave(const __grid_constant__ Arguments args) {
  cudaTriggerProgrammaticLaunchCompletion();
  nap(50000);
  for (int i = threadIdx.x; i < TILE; i += LANES)
    args.between[blockIdx.x * TILE + i] = args.x[blockIdx.x * TILE + i];
}

// The second kernel reads what the first one leaves, but does not wait for its end.
template <bool FIXED>
__global__ void dependent_launch(const __grid_constant__ Arguments args) {
  if (FIXED) cudaGridDependencySynchronize();
  for (int i = threadIdx.x; i < TILE; i += LANES)
    args.out[blockIdx.x * TILE + i] = args.between[blockIdx.x * TILE + i] + 1;
}
