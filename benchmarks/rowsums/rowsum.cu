// The sum of each row by a memory thread and a ring of two slots, in CUDA C++.
#include <cuda.h>
#include <cuda/barrier>
#include <cuda/ptx>

namespace ptx = cuda::ptx;
using Barrier = cuda::barrier<cuda::thread_scope_block>;
constexpr int ROWS = 64, COLUMNS = 64, SLOTS = 2, COMPUTE_WARPS = 4, LANES_OF_A_ROW = 16;

// One block: the sums of ROWS rows.
__global__ void kernel(const __grid_constant__ CUtensorMap x_gmem, float* sums_gmem, int steps) {
  // The slot: one of the ring's first axis.
  __shared__ alignas(128) float4 ring_smem[SLOTS][ROWS][LANES_OF_A_ROW];
#pragma nv_diag_suppress static_var_with_dynamic_init  // init below makes them
  __shared__ Barrier full[SLOTS], empty[SLOTS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * ROWS;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < SLOTS; ++slot) init(&full[slot], 1), init(&empty[slot], COMPUTE_WARPS);
    ptx::fence_proxy_async(ptx::space_shared);  // so that TMA sees them
  }
  __syncthreads();

  // The role: the last warp loads, by one lane; the first four add.
  if (warp == COMPUTE_WARPS) {
    for (int step = 0; lane == 0 && step < steps; ++step) {
      const int slot = step % SLOTS;
      // At first all slots are free: a wait for the phase before the first one returns.
      empty[slot].wait_parity((step / SLOTS + 1) & 1);
      // The copy: its barrier is an argument, and is told its bytes.
      const int column_and_row[] = {step * COLUMNS, first};
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, ring_smem[slot], &x_gmem,
                                column_and_row, cuda::device::barrier_native_handle(full[slot]));
      (void)cuda::device::barrier_arrive_tx(full[slot], 1, sizeof(ring_smem[slot]));
    }
  } else {
    float acc[ROWS / 8] = {};  // of a lane's columns, in every eighth row
    const int row = threadIdx.x / LANES_OF_A_ROW, column = threadIdx.x % LANES_OF_A_ROW;
    for (int step = 0; step < steps; ++step) {
      const int slot = step % SLOTS;
      // The barrier that says it has landed: the phase is counted by hand.
      full[slot].wait_parity((step / SLOTS) & 1);
      for (int i = 0; i < ROWS / 8; ++i) {
        const float4 x = ring_smem[slot][i * 8 + row][column];
        acc[i] += (x.x + x.y) + (x.z + x.w);
      }
      // The release: a fence after the reads, then one arrival of each warp.
      ptx::fence_proxy_async(ptx::space_shared);
      __syncwarp();
      if (lane == 0) (void)empty[slot].arrive();
    }
    for (int i = 0; i < ROWS / 8; ++i) {
      for (int far = LANES_OF_A_ROW / 2; far; far /= 2) acc[i] += __shfl_xor_sync(~0u, acc[i], far);
      if (column == 0) sums_gmem[first + i * 8 + row] = acc[i];
    }
  }
}

// Puts the sum of each row of x, whose shape is of whole tiles, into sums; returns CUDA's error.
extern "C" int row_sums(float* x, float* sums, cuuint64_t rows, cuuint64_t columns, cudaStream_t on) {
  void* encode = nullptr;  // of the driver's library, which is found at run time
  if (const auto error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, 0))
    return error;
  CUtensorMap map;
  const cuuint64_t shape[] = {columns, rows}, stride[] = {columns * sizeof(float)};
  const cuuint32_t tile[] = {COLUMNS, ROWS}, dense[] = {1, 1};
  if (const auto error = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
          &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, x, shape, stride, tile, dense,
          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
    return error;
  kernel<<<rows / ROWS, 32 * (COMPUTE_WARPS + 1), 0, on>>>(map, sums, columns / COLUMNS);
  return cudaGetLastError();
}
