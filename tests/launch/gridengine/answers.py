"""What commands of Grid Engine 8.1.9 print, without the lines and the XML namespace that nothing reads."""

QSTAT = """\
<?xml version='1.0'?>
<job_info>
  <queue_info>
    <job_list state="running">
      <JB_job_number>1</JB_job_number>
      <JAT_prio>0.25001</JAT_prio>
      <JB_name>train.py-0000abc1</JB_name>
      <JB_owner>ann</JB_owner>
      <state>r</state>
      <JAT_start_time>2026-11-28T23:13:20</JAT_start_time>
      <queue_name>all.q@localhost</queue_name>
      <slots>1</slots>
    </job_list>
    <job_list state="running">
      <JB_job_number>2</JB_job_number>
      <JAT_prio>0.25009</JAT_prio>
      <JB_name>train.py-0000abc2</JB_name>
      <JB_owner>ann</JB_owner>
      <state>dr</state>
      <JAT_start_time>2026-11-28T22:58:02</JAT_start_time>
      <queue_name>all.q@localhost</queue_name>
      <slots>1</slots>
    </job_list>
  </queue_info>
  <job_info>
    <job_list state="pending">
      <JB_job_number>3</JB_job_number>
      <JAT_prio>0.75000</JAT_prio>
      <JB_name>train.py-0000abc3</JB_name>
      <JB_owner>ann</JB_owner>
      <state>qw</state>
      <JB_submission_time>2026-11-28T23:13:21</JB_submission_time>
      <queue_name></queue_name>
      <slots>30</slots>
    </job_list>
    <job_list state="pending">
      <JB_job_number>4</JB_job_number>
      <JAT_prio>0.25000</JAT_prio>
      <JB_name>train.py-0000abc4</JB_name>
      <JB_owner>ann</JB_owner>
      <state>Eqw</state>
      <JB_submission_time>2026-11-28T23:13:21</JB_submission_time>
      <queue_name></queue_name>
      <slots>1</slots>
    </job_list>
    <job_list state="pending">
      <JB_job_number>6</JB_job_number>
      <JAT_prio>0.25000</JAT_prio>
      <JB_name>train.py-0000abc6</JB_name>
      <JB_owner>ann</JB_owner>
      <state>Rq</state>
      <JB_submission_time>2026-11-28T23:13:23</JB_submission_time>
      <queue_name></queue_name>
      <slots>1</slots>
    </job_list>
    <job_list state="pending">
      <JB_job_number>5</JB_job_number>
      <JAT_prio>0.00000</JAT_prio>
      <JB_name>train.py-0000abc5</JB_name>
      <JB_owner>ann</JB_owner>
      <state>hqw</state>
      <JB_submission_time>2026-11-28T23:13:21</JB_submission_time>
      <queue_name></queue_name>
      <slots>1</slots>
    </job_list>
  </job_info>
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
