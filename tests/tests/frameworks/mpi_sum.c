/* An MPI program as any: nothing in it knows of a scheduler. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int rank, world, one, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    one = rank + 1;
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("mpi rank %d of %d sum %d\n", rank, world, sum);
    MPI_Finalize();
    return 0;
}
