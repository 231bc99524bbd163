// Small kernels for Hopper with one fault each, and the same kernels without it.
//
//   faults list                                prints the names
//   faults NAME fixed|faulty RUNS [BLOCKS]     runs one; BLOCKS, 8 by default, is even
//
// A kernel is a template on FIXED. Wherever it asks for FIXED stands its fault; nothing else
// differs. A kernel with the name of one in `pipelib_book/gallery.py` has the same fault.
//
// The arguments are whole numbers, so that all sums are exact, and a run's differ from those of the
// run before. The host computes what the result should be. At the end one line of JSON says
//
//   {"runs", "wrong"}    how many runs, and how many had a wrong result
//   {"error", "runs"}    what error CUDA reports, and how many runs had ended before it
//
// The caller ends a kernel that hangs.
//
// nvcc -std=c++17 -O2 -lineinfo -arch=sm_90a faults.cu -o faults
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "blocks.cuh"
#include "products.cuh"
#include "rings.cuh"
#include "stores.cuh"

// What a block computes: how many numbers from how many, and the host's way to compute them.
// Factors are in fp16, for the tensor core.
struct Work {
  int in, out;
  void (*reference)(const float* x, float* out);
  bool factors = false;
};

template <int READERS>
void column_sums(const float* x, float* out) {
  std::fill(out, out + READERS * COLUMNS, 0.0f);
  for (int i = 0; i < STEPS * TILE; ++i) {
    out[i % COLUMNS] += x[i];
    if (READERS == 2) out[COLUMNS + i % COLUMNS] += x[i] * x[i];
  }
}

template <int TILES>
void total(const float* x, float* out) {
  std::fill(out, out + TILE, 0.0f);
  for (int i = 0; i < TILES * TILE; ++i) out[i % TILE] += x[i];
}

template <int TILES>
void plus_one(const float* x, float* out) {
  for (int i = 0; i < TILES * TILE; ++i) out[i] = x[i] + 1;
}

template <int TILES>
void multiples(const float* x, float* out) {
  for (int i = 0; i < TILES * TILE; ++i) out[i] = x[i % TILE] * (i / TILE + 1);
}

template <int FACTOR>
void product(const float* x, float* out) {
  for (int row = 0; row < OUT_ROWS; ++row)
    for (int column = 0; column < OUT_COLUMNS; ++column) {
      float sum = 0;
      for (int step = 0; step < STEPS; ++step) {
        const float* a = x + (step * FACTOR_ROWS + row) * DEPTH;
        const float* b = x + (step * FACTOR_ROWS + OUT_ROWS + column) * DEPTH;
        for (int i = 0; i < DEPTH; ++i) sum += a[i] * b[i];
      }
      out[row * OUT_COLUMNS + column] = FACTOR * sum;
    }
}

template <int READERS>
constexpr Work COLUMN_SUMS{STEPS * TILE, READERS * COLUMNS, column_sums<READERS>};
template <int TILES>
constexpr Work TOTAL{TILES * TILE, TILE, total<TILES>};
template <int TILES>
constexpr Work PLUS_ONE{TILES * TILE, TILES * TILE, plus_one<TILES>};
template <int TILES>
constexpr Work MULTIPLES{TILE, TILES * TILE, multiples<TILES>};
template <int FACTOR>
constexpr Work PRODUCT{STEPS * FACTOR_ROWS * DEPTH, OUT_ROWS * OUT_COLUMNS, product<FACTOR>, true};

using Kernel = void (*)(Arguments);

// A kernel's two versions, how it is launched, and the kernel before it, if any, that lets it
// start early.
struct Fault {
  std::string name;
  Kernel fixed, faulty;
  Work work;
  int lanes, smem_bytes = 0;
  Kernel before = nullptr;
};

std::string hyphens(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

#define FAULT(kernel, ...) \
  Fault { hyphens(#kernel), kernel<true>, kernel<false>, __VA_ARGS__ }

const Fault FAULTS[] = {
    FAULT(read_before_the_wait, PLUS_ONE<1>, LANES),
    FAULT(barrier_before_init, PLUS_ONE<1>, LANES),
    FAULT(wrong_slot, COLUMN_SUMS<1>, READER + 32),
    FAULT(uninitialized_smem, TOTAL<STEPS>, LANES),
    FAULT(missing_commit, PLUS_ONE<1>, LANES),
    FAULT(missing_proxy_fence, PLUS_ONE<1>, LANES),
    FAULT(missing_commit_before_wgmma, PRODUCT<2 * REPEATS>, LANES, sizeof(FactorRing)),
    FAULT(wrong_bytes, TOTAL<2>, LANES),
    FAULT(refill_too_early, COLUMN_SUMS<1>, READER),
    FAULT(missing_consumed_wait, COLUMN_SUMS<1>, READER + 32),
    FAULT(release_too_early, COLUMN_SUMS<1>, READER + 32),
    FAULT(one_release_of_two, COLUMN_SUMS<2>, 2 * READER + 32),
    FAULT(undelayed_release, PRODUCT<REPEATS>, LANES + 32, sizeof(FactorRing)),
    FAULT(missing_wgmma_wait, PRODUCT<REPEATS>, LANES, sizeof(FactorRing)),
    FAULT(arrival_never_comes, COLUMN_SUMS<1>, READER + 32),
    FAULT(arrival_too_many, TOTAL<2>, LANES),
    FAULT(wrong_bytes_never_come, TOTAL<2>, LANES),
    FAULT(lapped_waiter, MULTIPLES<3>, LANES + 32),
    FAULT(one_load_too_few, COLUMN_SUMS<1>, READER + 32),
    FAULT(waiting_in_a_circle, COLUMN_SUMS<1>, READER + 32),
    FAULT(staging_used_again, MULTIPLES<STEPS>, LANES),
    FAULT(exit_before_the_store, PLUS_ONE<1>, LANES),
    FAULT(never_stored, MULTIPLES<STEPS>, LANES),
    FAULT(same_output_block, PLUS_ONE<2>, LANES),
    FAULT(missing_barrier, PLUS_ONE<1>, LANES),
    FAULT(barrier_of_some_warps, PLUS_ONE<1>, LANES),
    FAULT(barrier_of_some_lanes, PLUS_ONE<1>, LANES),
    FAULT(named_barrier, PLUS_ONE<1>, LANES),
    FAULT(named_barrier_shared, PLUS_ONE<1>, LANES),
    FAULT(register_reallocation, PLUS_ONE<1>, 3 * LANES),
    FAULT(cluster_peer, PLUS_ONE<1>, LANES),
    FAULT(cluster_peer_exit, PLUS_ONE<1>, LANES),
    FAULT(blocks_of_the_grid, PLUS_ONE<1>, LANES),
    FAULT(out_of_bounds, PLUS_ONE<1>, LANES),
    FAULT(device_semaphore, PLUS_ONE<1>, LANES),
    FAULT(device_semaphore_never_set, PLUS_ONE<1>, LANES),
    FAULT(dependent_launch, PLUS_ONE<1>, LANES, 0, leave),
};

void check(cudaError_t error) {
  if (error) throw error;
}

// Memory on the GPU for so many values.
template <class Value>
Value* allocate(std::size_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(Value)));
  return static_cast<Value*>(memory);
}

template <class Value>
Value* upload(const std::vector<Value>& values) {
  Value* memory = allocate<Value>(values.size());
  check(cudaMemcpy(memory, values.data(), values.size() * sizeof(Value), cudaMemcpyHostToDevice));
  return memory;
}

// A tensor map of rows of 64 numbers, in boxes of so many rows, or of all. TMA swizzles factors.
CUtensorMap map_of(void* memory, bool factors, cuuint64_t count, cuuint32_t box_rows) {
  void* encode = nullptr;  // of the driver's library, which is found at run time
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                         cudaEnableDefault));
  if (!encode) check(cudaErrorSymbolNotFound);
  CUtensorMap map;
  const cuuint64_t bytes = factors ? sizeof(__half) : sizeof(float);
  const cuuint64_t rows = count / COLUMNS, shape[] = {COLUMNS, rows}, stride[] = {COLUMNS * bytes};
  const auto most_rows = static_cast<cuuint32_t>(std::min<cuuint64_t>(box_rows, rows));
  const cuuint32_t box[] = {COLUMNS, most_rows}, dense[] = {1, 1};
  if (reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
          &map, factors ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2,
          memory, shape, stride, box, dense, CU_TENSOR_MAP_INTERLEAVE_NONE,
          factors ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
          CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
    check(cudaErrorInvalidValue);
  return map;
}
static_assert(COLUMNS == DEPTH, "A map has rows of one length.");

// Arguments on the GPU, and the result that they should have.
struct Case {
  Arguments args;
  std::vector<float> expected;
};

// Draws a case. All cases share the memory of `shared`.
Case draw(const Work& work, int blocks, Arguments shared, std::mt19937& random) {
  std::vector<float> x(static_cast<std::size_t>(blocks) * work.in);
  for (float& each : x) each = static_cast<int>(random() % 9) - 4;
  Case drawn{shared, std::vector<float>(static_cast<std::size_t>(blocks) * work.out)};
  for (int block = 0; block < blocks; ++block)
    work.reference(&x[block * work.in], &drawn.expected[block * work.out]);
  void* memory = work.factors ? static_cast<void*>(upload(std::vector<__half>(x.begin(), x.end())))
                              : upload(x);
  drawn.args.x = work.factors ? nullptr : static_cast<float*>(memory);
  drawn.args.x_map = map_of(memory, work.factors, x.size(), work.factors ? FACTOR_ROWS : ROWS);
  return drawn;
}

// Launches a kernel on the default stream; where there is one before it, as its dependent.
void launch(const Fault& fault, Kernel kernel, int blocks, Arguments& args) {
  if (fault.before) {
    fault.before<<<blocks, fault.lanes>>>(args);
    check(cudaGetLastError());
  }
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = fault.lanes;
  config.dynamicSmemBytes = fault.smem_bytes;
  config.attrs = &early;
  config.numAttrs = fault.before ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, args));
}

// Runs a version with one case after the other; counts the runs, and those with a wrong result.
void run(const Fault& fault, Kernel kernel, int runs, int blocks, int& done, int& wrong) {
  constexpr int CASES = 4;
  const std::size_t count = static_cast<std::size_t>(blocks) * fault.work.out;
  Arguments shared = {};
  shared.out = allocate<float>(count);
  shared.out_map = map_of(shared.out, false, count, ROWS);
  shared.between = allocate<float>(blocks * TILE);
  shared.flags = allocate<unsigned>(blocks);
  std::mt19937 random(0);
  std::vector<Case> cases;
  while (cases.size() < static_cast<std::size_t>(std::min(runs, CASES)))
    cases.push_back(draw(fault.work, blocks, shared, random));
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             fault.smem_bytes));
  std::vector<float> result(count);
  for (; done < runs; ++done) {
    Case& chosen = cases[done % CASES];
    check(cudaMemset(shared.out, 0xff, count * sizeof(float)));  // NaN
    check(cudaMemset(shared.between, 0, blocks * TILE * sizeof(float)));
    check(cudaMemset(shared.flags, 0, blocks * sizeof(unsigned)));
    launch(fault, kernel, blocks, chosen.args);
    check(cudaDeviceSynchronize());
    check(cudaMemcpy(result.data(), shared.out, count * sizeof(float), cudaMemcpyDeviceToHost));
    wrong += result != chosen.expected;
  }
}

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words == std::vector<std::string>{"list"}) {
    for (const Fault& fault : FAULTS) std::printf("%s\n", fault.name.c_str());
    return 0;
  }
  const int blocks = words.size() == 4 ? std::atoi(words[3].c_str()) : 8;
  const bool asked = words.size() == 3 || words.size() == 4;
  if (asked && blocks > 0 && blocks % 2 == 0 && (words[1] == "fixed" || words[1] == "faulty"))
    for (const Fault& fault : FAULTS)
      if (fault.name == words[0]) {
        int done = 0, wrong = 0;
        try {
          run(fault, words[1] == "fixed" ? fault.fixed : fault.faulty, std::atoi(words[2].c_str()),
              blocks, done, wrong);
          std::printf("{\"runs\": %d, \"wrong\": %d}\n", done, wrong);
        } catch (cudaError_t error) {
          std::printf("{\"error\": \"%s\", \"runs\": %d}\n", cudaGetErrorString(error), done);
        }
        return 0;
      }
  std::fprintf(stderr, "faults list | faults NAME fixed|faulty RUNS [BLOCKS, an even number]\n");
  return 2;
}
