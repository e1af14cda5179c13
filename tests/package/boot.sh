# Boots the Debian in the directory $1 as process 1 of namespaces of its own. What belongs to the machine cannot be changed from inside.
set -e
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
for node in null zero full random urandom tty; do
    touch "dev/$node"
    mount --bind "/dev/$node" "dev/$node"
done
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
pivot_root . mnt
cd /
umount -l mnt
exec setpriv --bounding-set -sys_time,-sys_module,-sys_rawio \
    env -i container=other PATH=/usr/sbin:/usr/bin /lib/systemd/systemd --system --unit=basic.target --log-target=journal
