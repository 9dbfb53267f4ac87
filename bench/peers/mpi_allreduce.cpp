// MPI_Allreduce in one call, on buffers on huge pages, as bench/comm.cpp times Shoal's:
//   mpicxx -O2 -std=c++20 mpi_allreduce.cpp -o mpi_allreduce && mpirun -n 2 ./mpi_allreduce [ROUNDS] [MB...]
#include <mpi.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 11;
  std::vector<double> sizes;
  for (int i = 2; i < argc; ++i) sizes.push_back(std::atof(argv[i]));
  if (sizes.empty()) sizes = {0.004096, 0.065536, 1, 10, 100, 498};
  for (const double megabytes : sizes) {
    const auto bytes = static_cast<std::size_t>(std::llround(megabytes * 1e6));
    const std::size_t page = std::size_t{2} << 20, room = (bytes + page - 1) / page * page;
    void* x = std::aligned_alloc(page, room);
    madvise(x, room, MADV_HUGEPAGE);
    std::memset(x, 0, room);
    const auto calls = std::clamp<std::size_t>(20'000'000 / bytes, 1, 2000);
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double start = MPI_Wtime();
      for (std::size_t i = 0; i < calls; ++i) {
        MPI_Allreduce(MPI_IN_PLACE, x, static_cast<int>(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      }
      MPI_Barrier(MPI_COMM_WORLD);
      times.push_back((MPI_Wtime() - start) / static_cast<double>(calls));
    }
    std::free(x);
    std::sort(times.begin(), times.end());
    if (rank == 0) std::printf("%11zu bytes  MPI_Allreduce %.2f us\n", bytes, times[times.size() / 2] * 1e6);
  }
  MPI_Finalize();
}
