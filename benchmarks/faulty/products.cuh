// Faults of the tensor core's work: what wgmma reads is not yet there, or no longer.
#pragma once
#include "common.cuh"

// A block makes one tile of OUT_ROWS x OUT_COLUMNS, in steps of DEPTH. Each step's product is made
// REPEATS times, so slowly that the next factors can land meanwhile.
constexpr int OUT_ROWS = 64, OUT_COLUMNS = 128, DEPTH = 64, REPEATS = 8;

// A step's factors as TMA brings them in one box: a row of either has 128 bytes, in which TMA
// swizzles pieces of 16. The result is a times b's transpose.
struct alignas(1024) Factors {
  __half a[OUT_ROWS][DEPTH], b[OUT_COLUMNS][DEPTH];
};
constexpr int FACTOR_ROWS = OUT_ROWS + OUT_COLUMNS;

struct FactorRing {
  Factors slots[SLOTS];
  Barrier full[SLOTS], empty[SLOTS];

  __device__ void load(const Arguments& args, int step) {
    Barrier& landed = full[step % SLOTS];
    expect(landed, sizeof(Factors));
    copy(&slots[step % SLOTS], args, (blockIdx.x * STEPS + step) * FACTOR_ROWS, landed);
  }
};

// The block's dynamic shared memory, with barriers for one load and for the release by four warps.
__device__ inline FactorRing& factor_ring() {
  alignas(1024) extern __shared__ unsigned char memory[];
  FactorRing& ring = *reinterpret_cast<FactorRing*>(memory);
  make(ring.full, 1);
  make(ring.empty, LANES / 32);
  commit();
  return ring;
}

using Accumulator = float[OUT_ROWS * OUT_COLUMNS / LANES];

#define FOUR(i) "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#define ACCUMULATOR SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48)

// What wgmma is told of a factor: its address; eight rows are 1024 bytes; swizzled by 128 bytes.
__device__ inline std::uint64_t descriptor(const void* factor) {
  const std::uint64_t address = __cvta_generic_to_shared(factor);
  return (address & 0x3FFFF) >> 4 | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}

// One wgmma: 16 of the depth.
__device__ inline void wgmma(Accumulator& acc, std::uint64_t a, std::uint64_t b) {
  SM_90A(
      "{.reg .pred add;\n"
      "setp.eq.u32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, add, 1, 1, 0, 0;}"
      : ACCUMULATOR
      : "l"(a), "l"(b)
      : "memory");
}

// Starts a step's products, as one group.
__device__ inline void multiply(Accumulator& acc, const Factors& factors) {
  const std::uint64_t a = descriptor(factors.a), b = descriptor(factors.b);
  SM_90A("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int i = 0; i < REPEATS * DEPTH / 16; ++i) {
    const int bytes = i % (DEPTH / 16) * 16 * sizeof(__half);
    wgmma(acc, a + (bytes >> 4), b + (bytes >> 4));
  }
  SM_90A("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most so many groups of this warp are at work.
template <int GROUPS>
__device__ void wgmma_wait() {
  SM_90A("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

// Waits for all products and writes the block's tile of the output.
__device__ inline void finish(Accumulator& acc, const Arguments& args) {
  wgmma_wait<0>();
  asm volatile("" : ACCUMULATOR::"memory");  // no lane reads it earlier
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* out = args.out + blockIdx.x * OUT_ROWS * OUT_COLUMNS;
#pragma unroll
  for (int i = 0; i < OUT_ROWS * OUT_COLUMNS / LANES; ++i) {
    const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    out[row * OUT_COLUMNS + column] = acc[i];
  }
}

// The tensor core multiplies a factor that lanes have just doubled. Each warp is later than the
// one before.
template <bool FIXED>
__global__ void missing_commit_before_wgmma(const __grid_constant__ Arguments args) {
  FactorRing& ring = factor_ring();
  Accumulator acc = {};
#pragma unroll 1
  for (int step = 0; step < STEPS; ++step) {
    Factors& factors = ring.slots[step % SLOTS];
    if (threadIdx.x == 0) ring.load(args, step);
    wait(ring.full[step % SLOTS], step / SLOTS);
    nap(threadIdx.x / 32 * 1000);
    __half2* b = reinterpret_cast<__half2*>(factors.b);
    for (int i = threadIdx.x; i < OUT_COLUMNS * DEPTH / 2; i += LANES) b[i] = __hadd2(b[i], b[i]);
    if (FIXED) commit();
    multiply(acc, factors);
    wgmma_wait<0>();
    __syncthreads();
  }
  finish(acc, args);
}

// A slot is released while the product that reads it may be unfinished.
template <bool FIXED>
__global__ void undelayed_release(const __grid_constant__ Arguments args) {
  FactorRing& ring = factor_ring();
  if (threadIdx.x < LANES) {
    Accumulator acc = {};
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
      wait(ring.full[step % SLOTS], step / SLOTS);
      multiply(acc, ring.slots[step % SLOTS]);
      wgmma_wait<1>();  // the product of this step goes on
      const int released = FIXED ? step - 1 : step;
      if (released >= 0) arrive(ring.empty[released % SLOTS]);
    }
    finish(acc, args);
  } else if (threadIdx.x == LANES) {
    for (int step = 0; step < STEPS; ++step) {
      wait(ring.empty[step % SLOTS], step / SLOTS + 1);
      ring.load(args, step);
    }
  }
}

// A slot is refilled right after wgmma was started on it, as if wgmma had been awaited.
template <bool FIXED>
__global__ void missing_wgmma_wait(const __grid_constant__ Arguments args) {
  FactorRing& ring = factor_ring();
  Accumulator acc = {};
  for (int step = 0; threadIdx.x == 0 && step < SLOTS; ++step) ring.load(args, step);
#pragma unroll 1
  for (int step = 0; step < STEPS; ++step) {
    wait(ring.full[step % SLOTS], step / SLOTS);
    multiply(acc, ring.slots[step % SLOTS]);
    if (FIXED) wgmma_wait<0>();
    __syncthreads();
    if (threadIdx.x == 0 && step + SLOTS < STEPS) ring.load(args, step + SLOTS);
  }
  finish(acc, args);
}

#undef FOUR
#undef SIXTEEN
#undef ACCUMULATOR
