"""What real launchers put into the environment of a rank: captured, and cut to what is read."""

OPENMPI = {
    "OMPI_ARGV": "train.py",
    "OMPI_COMMAND": "python",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_UNIVERSE_SIZE": "2",
    "OMPI_VERSION": "5.0.11",
    "PMIX_NAMESPACE": "prterun-node1-5579@1",
    "PMIX_RANK": "1",
    "PRTE_LAUNCHED": "1",
}
HYDRA = {
    "HYDI_CONTROL_FD": "7",
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
    "PMI_FD": "11",
    "PMI_HOSTNAME": "node1",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}
INTEL = {
    "HYDRA_BSTRAP_LAUNCHER": "ssh",
    "HYDRA_BSTRAP_LOCALHOST": "node1",
    "I_MPI_HYDRA_UUID": "2d180000-3c14-c4e2-7f61-0600ede25336",
    "I_MPI_MPIRUN": "mpirun",
    "I_MPI_PIN_MAPPING": "2:0 0,1 1",
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
    "PMI_FD": "11",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}
# From MVAPICH2's documentation, not captured.
MVAPICH = {
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
    "MV2_COMM_WORLD_RANK": "1",
    "MV2_COMM_WORLD_SIZE": "2",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}
# Inside `sbatch -n 7` on three nodes.
SLURM_BATCH = {
    "SLURM_GTIDS": "0",
    "SLURM_JOB_ID": "134",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "3",
    "SLURM_NODEID": "0",
    "SLURM_NPROCS": "7",
    "SLURM_NTASKS": "7",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "2(x2),3",
}
SLURM_SALLOC = {
    "SLURM_JOB_ID": "134",
    "SLURM_NNODES": "3",
    "SLURM_NTASKS": "7",
    "SLURM_TASKS_PER_NODE": "2(x2),3",
}
# The shell of an `salloc` that runs on the node is a step of its own kind.
SLURM_SHELL_STEP = SLURM_BATCH | {
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
SRUN = SLURM_BATCH | {
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "2",
    "SLURM_PROCID": "6",
    "SLURM_STEPID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),3",
}
SRUN_PMIX = SRUN | {"PMIX_RANK": "6", "PMIX_NAMESPACE": "slurm.pmix.134.0"}
SRUN_PMI2 = SRUN | {"PMI_RANK": "6", "PMI_SIZE": "7", "PMI_FD": "13", "PMI_JOBID": "134.0"}
