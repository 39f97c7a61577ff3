"""OpenMPI with two ranks (processes), which exchange a number over shared memory or TCP. Rank 0 writes the lines."""
import os

from lib.program import Job

SOURCE = r'''
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **words)
{
    int rank, steps = atoi(getenv("FIELD_STEPS"));
    long value = 1;
    FILE *out = NULL;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0)
        out = fopen(getenv("FIELD_OUT"), "a");
    for (int step = 1; step <= steps; step++) {
        if (rank == 0) {
            MPI_Send(&value, 1, MPI_LONG, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(&value, 1, MPI_LONG, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            fprintf(out, "%d %ld\n", step, value);
            fflush(out);
        } else {
            MPI_Recv(&value, 1, MPI_LONG, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            value = (value * 1021 + step) % 1000003;
            MPI_Send(&value, 1, MPI_LONG, 0, 0, MPI_COMM_WORLD);
        }
        usleep((useconds_t)(1e6 * atof(getenv("FIELD_STEP_S"))));
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}
'''


class Openmpi(Job):
    name, group = "openmpi", "science"
    needs = {"mpicc.openmpi": "libopenmpi-dev", "mpirun.openmpi": "openmpi-bin"}
    source, source_name = SOURCE, "job.c"
    every, transport = "300ms", "self,vader"

    def prepare(self):
        super().prepare()
        self.tool("mpicc.openmpi", "-O1", "-o", self.path("job"), self.path("job.c"))
        os.makedirs(self.path("tmp"), exist_ok=True)

    def environment(self):
        return {**super().environment(), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "TMPDIR": self.path("tmp"), "HOME": self.folder}

    def program(self):
        return ["mpirun.openmpi", "--oversubscribe", "-np", "2", "--mca", "btl", self.transport, "--mca", "mpi_yield_when_idle", "1",
                "--mca", "plm_rsh_agent", "false", self.path("job")]


class OpenmpiTcp(Openmpi):
    name, transport = "openmpi-tcp", "self,tcp"
