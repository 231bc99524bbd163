// Faults of loads: what is read is not yet there, or no longer, or never comes.
#pragma once
#include "common.cuh"

// Lanes and warps of a reader, which has a lane for each column; its delay before each row.
constexpr int READER = COLUMNS, READER_WARPS = READER / 32, NAP_NS = 100;

// A block's tiles go through these slots. A slot is full when its tile has landed, and empty when
// each warp of its readers has arrived.
struct Ring {
  Tile slots[SLOTS];
  Barrier full[SLOTS], empty[SLOTS];

  __device__ void wait_until_full(int step) { wait(full[step % SLOTS], step / SLOTS); }

  // At first all slots are empty: a wait for the phase before the first one returns.
  __device__ void wait_until_empty(int step) { wait(empty[step % SLOTS], step / SLOTS + 1); }

  __device__ void load(const Arguments& args, int step) {
    ::load(slots[step % SLOTS], args, blockIdx.x * STEPS + step, full[step % SLOTS]);
  }

  // A lane's sum of its column in a step's slot, so slow that the next tile can land meanwhile.
  // The second reader adds squares, and is slower.
  __device__ float column_sum(int step, int reader) {
    float sum = 0;
#pragma unroll 1
    for (int row = 0; row < ROWS; ++row) {
      nap(NAP_NS << reader);
      const float value = slots[step % SLOTS].at[row * COLUMNS + threadIdx.x % READER];
      sum += reader ? value * value : value;
    }
    return sum;
  }

  __device__ void release(int step) { arrive(empty[step % SLOTS]); }
};

// The memory warp's lane, and a reader, as they should be.

__device__ inline void load_all(Ring& ring, const Arguments& args) {
  for (int step = 0; step < STEPS; ++step) {
    ring.wait_until_empty(step);
    ring.load(args, step);
  }
}

__device__ inline float sum_all(Ring& ring, int reader) {
  float total = 0;
  for (int step = 0; step < STEPS; ++step) {
    ring.wait_until_full(step);
    total += ring.column_sum(step, reader);
    ring.release(step);
  }
  return total;
}

// Column sums: readers, each of which reads all tiles, and a memory warp after them. `releases`
// is how many readers must arrive to free a slot.
template <int READERS = 1, class Load, class Sum>
__device__ void sums(const Arguments& args, int releases, Load load_all, Sum sum_all) {
  __shared__ Ring ring;
  make(ring.full, 1);
  make(ring.empty, releases * READER_WARPS);
  commit();
  const int reader = threadIdx.x / READER, lane = threadIdx.x % READER;
  if (reader < READERS)
    args.out[(blockIdx.x * READERS + reader) * COLUMNS + lane] = sum_all(ring, reader);
  else if (lane == 0)
    load_all(ring, args);
}

// What is not yet there.

// The tile is read while the copy that brings it is still on its way.
template <bool FIXED>
__global__ void read_before_the_wait(const __grid_constant__ Arguments args) {
  __shared__ Tile tile;
  __shared__ Barrier landed[1];
  make(landed, 1);
  commit();
  if (threadIdx.x == 0) load(tile, args, blockIdx.x, landed[0]);
  if (FIXED) wait(landed[0], 0);
  for (int i = threadIdx.x; i < TILE; i += LANES)
    args.out[blockIdx.x * TILE + i] = tile.at[i] + 1;
  if (!FIXED) wait(landed[0], 0);  // too late
}

// Lanes wait at a barrier that another lane makes only later.
template <bool FIXED>
__global__ void barrier_before_init(const __grid_constant__ Arguments args) {
  __shared__ Tile tile;
  __shared__ Barrier landed[1];
  if (threadIdx.x == 0) nap(5000);
  make(landed, 1);
  if (FIXED) commit();
  if (threadIdx.x == 0) load(tile, args, blockIdx.x, landed[0]);
  wait(landed[0], 0);
  for (int i = threadIdx.x; i < TILE; i += LANES)
    args.out[blockIdx.x * TILE + i] = tile.at[i] + 1;
}

// The reader waits for one slot and reads another.
template <bool FIXED>
__global__ void wrong_slot(const __grid_constant__ Arguments args) {
  sums(args, 1, load_all, [](Ring& ring, int reader) {
    float total = 0;
    for (int step = 0; step < STEPS; ++step) {
      ring.wait_until_full(step);
      total += ring.column_sum(FIXED ? step : step + 1, reader);
      ring.release(step);
    }
    return total;
  });
}

// A total is kept in shared memory and added to, but never set to zero.
template <bool FIXED>
__global__ void uninitialized_smem(const __grid_constant__ Arguments args) {
  __shared__ Tile total;
  for (int i = threadIdx.x; FIXED && i < TILE; i += LANES) total.at[i] = 0;
  __syncthreads();
  for (int step = 0; step < STEPS; ++step)
    for (int i = threadIdx.x; i < TILE; i += LANES)
      total.at[i] += args.x[(blockIdx.x * STEPS + step) * TILE + i];
  __syncthreads();
  for (int i = threadIdx.x; i < TILE; i += LANES) args.out[blockIdx.x * TILE + i] = total.at[i];
}

// The sum of two tiles that share a barrier: `load_both(tiles, landed)` is what one lane does.
template <class Load>
__device__ void sum_of_two(const Arguments& args, int arrivals, Load load_both) {
  __shared__ Tile tiles[2];
  __shared__ Barrier landed[1];
  make(landed, arrivals);
  commit();
  if (threadIdx.x == 0) load_both(tiles, landed[0]);
  wait(landed[0], 0);
  for (int i = threadIdx.x; i < TILE; i += LANES)
    args.out[blockIdx.x * TILE + i] = tiles[0].at[i] + tiles[1].at[i];
}

// The barrier expects the bytes of one copy, though two copies share it.
template <bool FIXED>
__global__ void wrong_bytes(const __grid_constant__ Arguments args) {
  sum_of_two(args, 1, [&args](Tile* tiles, Barrier& landed) {
    expect(landed, (FIXED ? 2 : 1) * sizeof(Tile));
    copy(&tiles[0], args, 2 * blockIdx.x * ROWS, landed);
    nap(5000);
    copy(&tiles[1], args, (2 * blockIdx.x + 1) * ROWS, landed);
  });
}

// The barrier expects bytes that no copy brings.
template <bool FIXED>
__global__ void wrong_bytes_never_come(const __grid_constant__ Arguments args) {
  sum_of_two(args, 1, [&args](Tile* tiles, Barrier& landed) {
    expect(landed, (FIXED ? 2 : 3) * sizeof(Tile));
    copy(&tiles[0], args, 2 * blockIdx.x * ROWS, landed);
    copy(&tiles[1], args, (2 * blockIdx.x + 1) * ROWS, landed);
  });
}

// Two copies arrive at a barrier that expects one arrival.
template <bool FIXED>
__global__ void arrival_too_many(const __grid_constant__ Arguments args) {
  sum_of_two(args, FIXED ? 2 : 1, [&args](Tile* tiles, Barrier& landed) {
    load(tiles[0], args, 2 * blockIdx.x, landed);
    load(tiles[1], args, 2 * blockIdx.x + 1, landed);
  });
}

// What is no longer there.

// One group of lanes starts to load the slot's next tile, and only then reads the present one.
template <bool FIXED>
__global__ void refill_too_early(const __grid_constant__ Arguments args) {
  __shared__ Ring ring;
  make(ring.full, 1);
  commit();
  const auto load = [&args](int step) {
    if (threadIdx.x == 0 && step < STEPS) ring.load(args, step);
  };
  for (int step = 0; step < SLOTS; ++step) load(step);
  float total = 0;
  for (int step = 0; step < STEPS; ++step) {
    ring.wait_until_full(step);
    if (!FIXED) load(step + SLOTS);  // too early
    total += ring.column_sum(step, 0);
    commit();
    if (FIXED) load(step + SLOTS);
  }
  args.out[blockIdx.x * COLUMNS + threadIdx.x] = total;
}

// The memory warp loads tile after tile, whether the reader has read them or not.
template <bool FIXED>
__global__ void missing_consumed_wait(const __grid_constant__ Arguments args) {
  const auto load_all = [](Ring& ring, const Arguments& args) {
    for (int step = 0; step < STEPS; ++step) {
      if (FIXED) ring.wait_until_empty(step);
      ring.load(args, step);
    }
  };
  sums(args, 1, load_all, sum_all);
}

// The reader says that a slot is empty, and only then reads it.
template <bool FIXED>
__global__ void release_too_early(const __grid_constant__ Arguments args) {
  sums(args, 1, load_all, [](Ring& ring, int reader) {
    float total = 0;
    for (int step = 0; step < STEPS; ++step) {
      ring.wait_until_full(step);
      if (!FIXED) ring.release(step);  // too early
      total += ring.column_sum(step, reader);
      if (FIXED) ring.release(step);
    }
    return total;
  });
}

// Two readers read each slot, but the first one's arrivals free it.
template <bool FIXED>
__global__ void one_release_of_two(const __grid_constant__ Arguments args) {
  sums<2>(args, FIXED ? 2 : 1, load_all, sum_all);
}

// What never comes.

// A slot's release expects the arrivals of two readers, but there is one.
template <bool FIXED>
__global__ void arrival_never_comes(const __grid_constant__ Arguments args) {
  sums(args, FIXED ? 1 : 2, load_all, sum_all);
}

// The reader waits for a last tile that the memory warp does not load.
template <bool FIXED>
__global__ void one_load_too_few(const __grid_constant__ Arguments args) {
  const auto load_all = [](Ring& ring, const Arguments& args) {
    for (int step = 0; step < (FIXED ? STEPS : STEPS - 1); ++step) {
      ring.wait_until_empty(step);
      ring.load(args, step);
    }
  };
  sums(args, 1, load_all, sum_all);
}

// The memory warp waits for a release before its first load, which nobody can give: the phase of
// its first wait is 0, as if it were a reader.
template <bool FIXED>
__global__ void waiting_in_a_circle(const __grid_constant__ Arguments args) {
  const auto load_all = [](Ring& ring, const Arguments& args) {
    for (int step = 0; step < STEPS; ++step) {
      wait(ring.empty[step % SLOTS], FIXED ? step / SLOTS + 1 : step / SLOTS);
      ring.load(args, step);
    }
  };
  sums(args, 1, load_all, sum_all);
}
