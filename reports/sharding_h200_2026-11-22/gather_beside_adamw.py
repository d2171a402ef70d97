"""What an all-gather of updated parameters costs beside the AdamW that updates the next part."""
import json, os, statistics, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

OWN = 1 << 30  # elements that a rank owns: 4 GiB of 8


def timed(f, repeats=6):
    times = []
    for i in range(repeats):
        torch.cuda.synchronize(); dist.barrier()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); f(); b.record(); torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return round(statistics.median(times[2:]), 2)


def main(rank, mode, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    if mode == "zero":
        try: options.config.cta_policy = 2
        except Exception as e: print("no cta_policy in options:", e)
    dist.init_process_group("nccl", pg_options=options, device_id=torch.device("cuda", rank))
    dist.barrier()
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    flats = None
    result = {"mode": mode, "nccl": torch.cuda.nccl.version()}
    parts = [16 << 20, 64 << 20, 256 << 20]  # elements of a rank's part
    if mode in ("zero", "symm"):
        pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            whole = torch.zeros(2 * OWN, device="cuda")
        try: backend.register_mem_pool(pool, symm=True); result["registered"] = "symm"
        except TypeError: backend.register_mem_pool(pool); result["registered"] = "plain"
    elif mode == "copy":
        import torch.distributed._symmetric_memory as symm
        whole = symm.empty(2 * OWN, device="cuda"); handle = symm.rendezvous(whole, dist.group.WORLD.group_name)
        theirs = handle.get_buffer(1 - rank, (2 * OWN,), torch.float32)
        side = torch.cuda.Stream(priority=-1)
    else:
        whole = torch.zeros(2 * OWN, device="cuda")
    g, m, v = (torch.full((OWN,), 1e-3, device="cuda") for _ in range(3))
    step = torch.ones((), device="cuda")

    def adamw(flat, i, part):
        p = flat[rank * part:(rank + 1) * part]; s = slice(i * part, (i + 1) * part)
        torch._fused_adamw_([p], [g[s]], [m[s]], [v[s]], [], [step], lr=1e-3, beta1=0.9, beta2=0.95,
                            weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)

    for part in parts:
        count = OWN // part
        flats = [whole[2 * part * i:2 * part * (i + 1)] for i in range(count)]

        def gather(i):
            if mode == "copy":
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    a = 2 * part * i + rank * part
                    theirs[a:a + part].copy_(whole[a:a + part])
                return None
            flat = flats[i]
            return dist.all_gather_into_tensor(flat, flat[rank * part:(rank + 1) * part], async_op=True)

        def finish(works):
            if mode == "copy": torch.cuda.current_stream().wait_stream(side)
            for w in works:
                if w: w.wait()

        def only_gather(): finish([gather(i) for i in range(count)])
        def only_adamw():
            for i in range(count): adamw(flats[i], i, part)
        def both():
            works = []
            for i in range(count): adamw(flats[i], i, part); works.append(gather(i))
            finish(works)
        def after():  # nothing beside: the sum
            only_adamw(); only_gather()
        times = {"adamw": timed(only_adamw), "gather": timed(only_gather), "beside": timed(both), "after": timed(after)}
        result[f"{part * 4 / 1e6:.0f} MB"] = times
    if rank == 0:
        if mode != "copy":
            from torch.profiler import profile, ProfilerActivity
            with profile(activities=[ProfilerActivity.CUDA]) as prof: both(); torch.cuda.synchronize()
            names = {}
            for e in prof.events():
                if e.device_type == torch.autograd.DeviceType.CUDA: names.setdefault(e.name[:60], []).append(e.time_range.elapsed_us())
            result["kernels"] = {k: [len(x), round(sum(x) / 1e3, 2)] for k, x in names.items()}
        else: both()
        print(json.dumps(result), flush=True)
    else: both()
    torch.cuda.synchronize(); dist.barrier(); dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=(sys.argv[1], 29500 + os.getpid() % 1000), nprocs=2)
