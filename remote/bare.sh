# What a container says of itself to a POSIX shell: which Python runs the helper, and, where none does, the facts that
# the helper would have given. Fed to `sh -s`; the lines before it set p (the wanted python), m (the marker), w (the workspace).
# Nothing is written. Every answer is a line: marker, key, value. A tool that is missing leaves its lines out.

say() { printf '\n%s%s %s\n' "$m" "$1" "$2"; }
have() { command -v "$1" >/dev/null 2>&1; }
# A driver or a network disk that hangs must not hang us. Our stdin is this script, so nobody else may read it.
limited() {
  if have timeout; then timeout 10 "$@" </dev/null 2>/dev/null; else "$@" </dev/null 2>/dev/null; fi
}
tell='import sys; sys.stdout.write("%d.%d.%d" % sys.version_info[:3])'
new_enough() { case $1 in 3.[89].* | 3.[1-9][0-9].*) return 0 ;; esac; return 1; }

v=none
# Without a limit: on a machine under load the one that matters may be slow, and is not broken for that.
if have "$p"; then v=$("$p" -E -S -c "$tell" </dev/null 2>/dev/null); fi
say python "${v:-broken}"
if new_enough "$v"; then say end .; exit 0; fi

seen=" " n=0
for c in python3 /usr/bin/python3 /usr/local/bin/python3 /opt/conda/bin/python3 /opt/venv/bin/python3 /opt/python/bin/python3 \
  "$HOME/miniconda3/bin/python3" "$HOME/anaconda3/bin/python3" "$HOME/.venv/bin/python3" "$HOME"/.pyenv/versions/*/bin/python3 \
  "$HOME"/.local/share/uv/python/*/bin/python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 \
  python /usr/libexec/platform-python; do
  f=$(command -v "$c" 2>/dev/null) || continue
  case $seen in *" $f "*) continue ;; esac
  seen="$seen$f "
  [ "$f" = "$p" ] && continue
  v=$(limited "$f" -E -S -c "$tell") && [ -n "$v" ] && say found "$v $f" && n=$((n + 1))
  [ "$n" -ge 8 ] && break
done

have uname && { say kernel "$(uname -r)"; say arch "$(uname -m)"; say hostname "$(uname -n)"; say system "$(uname -s)"; }
have id && say user "$(id -un 2>/dev/null || id -u)"
if [ -r /etc/os-release ]; then
  while IFS= read -r line; do case $line in PRETTY_NAME=*) say os "${line#PRETTY_NAME=}" ;; esac; done </etc/os-release
fi
if [ -r /proc/meminfo ]; then
  while IFS= read -r line; do case $line in MemTotal:* | MemAvailable:*) say memory "$line" ;; esac; done </proc/meminfo
fi
if [ -r /proc/cpuinfo ]; then
  n=0
  while IFS= read -r line; do case $line in processor*) n=$((n + 1)) ;; esac; done </proc/cpuinfo
  say cpus "$n"
fi
if [ -r /proc/loadavg ]; then IFS= read -r line </proc/loadavg && say load "$line"; fi

d=$w
while [ -n "$d" ] && [ ! -d "$d" ]; do case $d in */*) d=${d%/*} ;; *) d= ;; esac; done
for c in "${d:-/}" /tmp /dev/shm; do
  [ -d "$c" ] || continue
  have df && limited df -P -k "$c" | { IFS= read -r line; IFS= read -r line && say disk "$line"; }
done

if have nvidia-smi; then
  rows=$(limited nvidia-smi --format=csv,noheader,nounits \
    --query-gpu=index,uuid,memory.total,memory.used,utilization.gpu,temperature.gpu,driver_version,name) && say smi ok || say smi failed
  printf '%s\n' "$rows" | while IFS= read -r line; do [ -n "$line" ] && say gpu "$line"; done
else
  say smi none
fi

if have grep && [ -d /proc/self ]; then
  for f in $(grep -l -a -e 'vllm.*serve' -e 'vllm\.entrypoints' /proc/[0-9]*/cmdline 2>/dev/null); do
    i=${f#/proc/} i=${i%/cmdline}
    [ "$i" = "$$" ] && continue
    [ -r "$f" ] && line=$(tr "\0\n" "  " <"$f" 2>/dev/null) && [ -n "$line" ] && say vllm "$i $line"
  done
fi
say end .
