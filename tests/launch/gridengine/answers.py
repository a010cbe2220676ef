"""What commands of Grid Engine 8.1.9 print, without the lines and the XML namespace that nothing reads."""

from __future__ import annotations


def _listed(number: int, letters: str, *, waits: bool = True) -> str:
    """A job as `qstat -xml` lists it."""
    time = "JB_submission_time" if waits else "JAT_start_time"
    return f"""\
    <job_list state="{"pending" if waits else "running"}">
      <JB_job_number>{number}</JB_job_number>
      <JAT_prio>0.25000</JAT_prio>
      <JB_name>train.py-0000abc{number}</JB_name>
      <JB_owner>ann</JB_owner>
      <state>{letters}</state>
      <{time}>2026-11-28T23:13:21</{time}>
      <queue_name>{"" if waits else "all.q@localhost"}</queue_name>
      <slots>1</slots>
    </job_list>
"""


QSTAT = f"""\
<?xml version='1.0'?>
<job_info>
  <queue_info>
{_listed(1, "r", waits=False)}{_listed(2, "dr", waits=False)}  </queue_info>
  <job_info>
{_listed(3, "qw")}{_listed(4, "Eqw")}{_listed(6, "Rq")}{_listed(5, "hqw")}  </job_info>
</job_info>
"""
WAITING = """\
==============================================================
job_number:                 3
submission_time:            Sat Nov 28 23:13:21 2026
job_name:                   train.py-0000abc3
parallel environment:  smp range: 30
job_type:                   NONE
scheduling info:            cannot run in PE "smp" because it only offers 0 slots
"""
IN_ERROR = """\
==============================================================
job_number:                 4
submission_time:            Sat Nov 28 23:13:21 2026
job_name:                   train.py-0000abc4
stdout_path_list:           NONE:NONE:/home/ann/digits/runs/.jobs/1/stdout.log
job_type:                   NONE
error reason          1:      11/28/2026 23:13:21 [0:13709]: error: can't open output file "/home/ann/digits/runs/.jobs/1/stdout.log": No such file or directory
scheduling info:            Job is in error state
"""


def accounting(*entries: tuple[str, str], name: str = "train.py-0000abc7") -> str:
    """What `qacct -j` prints of a job with these values of `failed` and `exit_status`, one pair for each start."""
    return "".join(
        f"""\
==============================================================
qname        all.q
hostname     localhost
owner        ann
project      NONE
jobname      {name}
jobnumber    7
taskid       undefined
qsub_time    Sat Nov 28 23:13:46 2026
start_time   -/-
granted_pe   NONE
slots        1
failed       {failed}
exit_status  {status}
ru_wallclock 1s
"""
        for failed, status in entries
    )
