# Personal models and more rounds, tried with a small network on a CPU: bash run.sh PARTITION SEED OUT
OUT=$3/$1-$2
COMMON="--dataset cifar10 --partition $1 --seed $2 --model mlp --device cpu --checkpoint-every 0"
export OMP_NUM_THREADS=1
scool run scool-drawn $COMMON --rounds 40 --eval-every 10 --out "$OUT/drawn"
scool run scool-drawn $COMMON --rounds 200 --epochs 1 --fraction 0.02 --model-average 0.98 --eval-every 50 \
  --out "$OUT/drawn-often"
[ "$1-$2" = noniid-0 ] || exit 0
scool run scool-drawn $COMMON --rounds 40 --eval-every 10 --personal-pull 1 --out "$OUT/drawn-personal"
scool run ditto $COMMON --participation 0.1 --rounds 400 --eval-every 100 --out "$OUT/ditto"
