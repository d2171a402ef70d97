"""Ways to give each of two ranks the mean of its half of 8 GB of gradients, alone and beside products."""
import json, os, statistics, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.distributed.distributed_c10d import _coalescing_manager

SIZES = [1600 * 6400] * 3 + [1600 * 1600] * 4  # of a layer
LAYERS = 48


def timed(f, repeats=5):
    times = []
    for i in range(repeats):
        torch.cuda.synchronize(); dist.barrier()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); f(); b.record(); torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return round(statistics.median(times[1:]), 2)


def main(rank, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", pg_options=dist.ProcessGroupNCCL.Options(is_high_priority_stream=True),
                            device_id=torch.device("cuda", rank))
    layers = [[torch.ones(n, device="cuda") for n in SIZES] for _ in range(LAYERS)]
    buckets = [layers[2 * i] + layers[2 * i + 1] for i in range(LAYERS // 2)]  # 328 MB
    side = torch.cuda.Stream(priority=-1)
    parts = [torch.empty(sum(g.numel() for g in b) // 2, device="cuda") for b in buckets]
    x = torch.randn(4096, 8192, device="cuda"); w = torch.randn(8192, 8192, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = False

    def all_reduce(b):
        with _coalescing_manager(device=torch.device("cuda"), async_ops=True) as cm:
            for g in buckets[b]: dist.all_reduce(g, op=dist.ReduceOp.AVG)
        return cm

    def scatter(b):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            flat = torch.cat(buckets[b])
            return dist.reduce_scatter_tensor(parts[b], flat, op=dist.ReduceOp.AVG, async_op=True)

    def scatter_ready(b):  # no copy: what the exchange alone takes
        return dist.reduce_scatter_tensor(parts[b], flats[b % 2], op=dist.ReduceOp.AVG, async_op=True)

    def reduces(b):
        half = sum(g.numel() for g in buckets[b]) // 2
        group = dist.group.WORLD
        group._start_coalescing(torch.device("cuda"))
        at = 0
        for g in buckets[b]:
            for root, (lo, hi) in enumerate([(0, half), (half, 2 * half)]):
                begin, end = max(lo - at, 0), min(hi - at, g.numel())
                if begin < end: dist.reduce(g[begin:end], root, op=dist.ReduceOp.AVG, async_op=True)
            at += g.numel()
        return group._end_coalescing(torch.device("cuda"))

    flats = [torch.cat(buckets[i]) for i in range(2)]
    ways = {"all_reduce": all_reduce, "scatter": scatter, "scatter_ready": scatter_ready, "reduces": reduces}
    result = {"gb": round(sum(SIZES) * LAYERS * 4 / 1e9, 2)}

    def products():
        for _ in range(2): torch.mm(x, w)

    def all_products():
        for b in range(len(buckets)): products()
    result["products"] = timed(all_products)
    for name, way in ways.items():
        def alone():
            works = [way(b) for b in range(len(buckets))]
            for work in works: work.wait()
        def beside():
            works = []
            for b in range(len(buckets)): products(); works.append(way(b))
            for work in works: work.wait()
        try: result[name] = {"alone": timed(alone), "beside": timed(beside)}
        except Exception as error: result[name] = str(error)[:200]
    if rank == 0: print(json.dumps(result), flush=True)
    torch.cuda.synchronize(); dist.barrier(); dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=(29500 + os.getpid() % 1000,), nprocs=2)
