#!/bin/bash
# Start the processes of a run in a job of Grid Engine: start.sh DIRECTORY PROCESSES REQUEUE WARNING COMMAND...
directory=$1 processes=$2 requeue=$3 warning=$4
shift 4
export REPRO_ENV_JOB_DIRECTORY=$directory REPRO_ENV_JOB_RESTARTS
REPRO_ENV_JOB_RESTARTS=$(cat "$directory/starts" 2>/dev/null | wc -l) # Grid Engine says that it restarted a job, but not how often
echo >>"$directory/starts"

# Grid Engine signals the process group of the script. With -m, the processes have their own, so they get a signal once.
set -m
send() { kill "-$1" "${pids[@]}" 2>/dev/null; }
trap 'caught=1; send TERM' TERM USR2 # after qdel and at the time limit, some time before SIGKILL (qsub -notify)
trap 'caught=1; send USR1' ALRM      # before the time limit: Grid Engine 8.1 forgets h_rt when s_rt has passed
trap 'caught=1' USR1                 # before a suspension
pids=()
for ((rank = 0; rank < processes; rank++)); do
    [ "$processes" = 1 ] || export RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$processes
    "$@" &
    pids+=($!)
done
[ "$warning" = 0 ] || { { sleep "$warning" && kill -ALRM $$; } & timer=$!; disown; }
running=$processes code=0
while [ "$running" -gt 0 ]; do
    caught=
    wait -n
    status=$?
    [ -z "$caught" ] || continue
    running=$((running - 1))
    [ "$status" = 0 ] || [ "$code" != 0 ] || code=$status
    # With `requeue`, a process that saved its state ends with a failure too, and others may take longer.
    [ "$status" = 0 ] || [ "$requeue" = 1 ] || send TERM
done
[ "$warning" = 0 ] || kill -- "-$timer" 2>/dev/null
[ ! -e "$directory/requeue" ] || { rm "$directory/requeue" && exit 99; } # which queues the job again
[ "$code" != 99 ] && [ "$code" != 100 ] || code=1                       # Grid Engine holds a job that ends with 100
exit "$code"
