// Faults of the way out: a staging tile in shared memory, which TMA stores.
#pragma once
#include "common.cuh"

// The block's lanes write x times `factor` plus `term` into a staging tile.
__device__ inline void write(Tile& staging, const Arguments& args, float factor, float term) {
  for (int i = threadIdx.x; i < TILE; i += LANES)
    staging.at[i] = args.x[blockIdx.x * TILE + i] * factor + term;
}

// TMA is sent for a tile that not all lanes have finished writing. Each warp is later than the one
// before.
template <bool FIXED>
__global__ void missing_commit(const __grid_constant__ Arguments args) {
  __shared__ Tile staging;
  nap(threadIdx.x / 32 * 2000);
  write(staging, args, 1, 1);
  if (FIXED) commit();
  if (threadIdx.x == 0) {
    store(staging, args, blockIdx.x);
    wait_for_stores();
  }
}

// All lanes have finished writing, but no fence says that TMA is to see it.
template <bool FIXED>
__global__ void missing_proxy_fence(const __grid_constant__ Arguments args) {
  __shared__ Tile staging;
  write(staging, args, 1, 1);
  if (FIXED) ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
  if (threadIdx.x == 0) {
    store(staging, args, blockIdx.x);
    wait_for_stores();
  }
}

// Writers arrive at a barrier more than once before the warp that stores has looked.
template <bool FIXED>
__global__ void lapped_waiter(const __grid_constant__ Arguments args) {
  constexpr int TILES = 3;
  __shared__ Tile staging[TILES];
  __shared__ Barrier written[TILES];
  make(written, LANES / 32);
  commit();
  if (threadIdx.x < LANES) {
    for (int k = 0; k < TILES; ++k) {
      write(staging[k], args, k + 1, 0);
      arrive(written[FIXED ? k : 0]);
    }
  } else if (threadIdx.x == LANES) {
    for (int k = 0; k < TILES; ++k) {
      nap(5000);
      wait(written[FIXED ? k : 0], FIXED ? 0 : k);
      store(staging[k], args, blockIdx.x * TILES + k);
      wait_for_stores();
    }
  }
}

// The next result is written into shared memory from which the last is still being stored.
template <bool FIXED>
__global__ void staging_used_again(const __grid_constant__ Arguments args) {
  __shared__ Tile staging;
  for (int k = 0; k < STEPS; ++k) {
    write(staging, args, k + 1, 0);
    commit();
    if (threadIdx.x == 0) {
      store(staging, args, blockIdx.x * STEPS + k);
      if (FIXED) wait_for_stores();
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) wait_for_stores();
}

// A block ends while TMA may still be reading its shared memory.
template <bool FIXED>
__global__ void exit_before_the_store(const __grid_constant__ Arguments args) {
  __shared__ Tile staging;
  write(staging, args, 1, 1);
  commit();
  if (threadIdx.x == 0) {
    store(staging, args, blockIdx.x);
    if (FIXED) wait_for_stores();
  }
}

// The condition for another step guards the store too, so the last result stays in shared memory.
template <bool FIXED>
__global__ void never_stored(const __grid_constant__ Arguments args) {
  __shared__ Tile staging;
  for (int k = 0; k < STEPS; ++k) {
    write(staging, args, k + 1, 0);
    commit();
    if (threadIdx.x == 0 && (FIXED || k + 1 < STEPS)) {
      store(staging, args, blockIdx.x * STEPS + k);
      wait_for_stores();
    }
    __syncthreads();
  }
}

// Both groups of a block's lanes store their tiles in the same place.
template <bool FIXED>
__global__ void same_output_block(const __grid_constant__ Arguments args) {
  constexpr int GROUP = LANES / 2;
  __shared__ Tile staging[2];
  const int group = threadIdx.x / GROUP, lane = threadIdx.x % GROUP, mine = 2 * blockIdx.x + group;
  for (int i = lane; i < TILE; i += GROUP) staging[group].at[i] = args.x[mine * TILE + i] + 1;
  commit();
  if (lane == 0) {
    store(staging[group], args, FIXED ? mine : 2 * blockIdx.x);
    wait_for_stores();
  }
}
