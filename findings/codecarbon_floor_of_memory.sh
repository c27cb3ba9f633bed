#!/usr/bin/env bash
# Four jobs of some 100 MB run at once, each with codecarbon's tracking_mode="process", which counts
# the job's own part. How many watts of memory do the four book, beside one tracker of the machine?
# Guess: far less: their part of the memory (60 %).
# Seen: twice as many: 4 x 10 W beside 20 W for 23 GB. A process's memory is priced as if it were a
#   machine with as much memory, and no x86 machine has less than 10 W. So the parts of jobs that
#   share a machine can add up to more than the machine.
# Versions: codecarbon 3.3.2, x86; no GPU
# Met by: several trainings on one machine with tracking_mode="process"
# Source: measured; codecarbon/external/ram.py of 3.3.2
set -euo pipefail
[ "$(uname -m)" = x86_64 ] || { echo 'skipped: not x86'; exit 77; }
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
python3 -m venv "$T/venv" && "$T/venv/bin/pip" install -q codecarbon==3.3.2 2> "$T/log" ||
  { echo 'skipped: no codecarbon 3.3.2 to install'; exit 77; }
for name in ${!CODECARBON_*} ${!SLURM_*}; do unset "$name"; done
cat > "$T/job.py" << 'END'
import sys, time
import psutil
from codecarbon import OfflineEmissionsTracker
weights = bytearray(100 << 20)
tracker = OfflineEmissionsTracker(country_iso_code="FRA", tracking_mode=sys.argv[1],
    measure_power_secs=1, save_to_file=False, log_level="critical", force_cpu_power=100)
tracker.start()
time.sleep(6)
tracker.stop()
resident = psutil.Process().memory_info().rss / 2**20
print(f"{tracker.final_emissions_data.ram_power:.1f} W, {resident:.0f} MB resident")
END
cd "$T"
machine=$("$T/venv/bin/python" job.py machine 2> "$T/log")
for job in 1 2 3 4; do
  "$T/venv/bin/python" job.py process > "job$job" 2> "log$job" &
done
wait
echo "codecarbon 3.3.2, memory of the whole machine: ${machine%% W*} W"
echo "four jobs at once in process mode:" && cat job?
[ "$(cut -d' ' -f1 job? | sort | uniq -c | xargs)" = "4 10.0" ] ||
  { echo "changed: 10.0 W in each was seen"; exit 1; }
