"""TensorFlow as one client of many: N servers of one process each, and a session that runs graphs over all of them.

Its graphs have no collectives between servers: an AllReduce is a sum at one of them, which the others read. A call is
one run of a graph and waits for its end; a chained program is one graph of that many computations.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}

import sides  # noqa: E402

SERVER = "server"
if sys.argv[1] == SERVER:
    import tensorflow as tf

    server = tf.compat.v1.train.Server(json.loads(sys.argv[2]), job_name="hosts", task_index=int(sys.argv[3]))
    sys.stdin.read()  # ends with who started it
    os._exit(0)  # a server cannot be stopped otherwise

stream = sides.answers()
try:
    import tensorflow as tf
except ImportError as error:
    sides.leave_out(stream, str(error))
    sys.exit()

import computation  # noqa: E402

v1 = tf.compat.v1
N = int(sys.argv[1])


def at(host):
    return tf.device(f"/job:hosts/task:{host}/device:CPU:0")


class Graph:
    """A graph on variables of the hosts, with a session of its own."""

    def __init__(self, target, steps, joined):
        with tf.Graph().as_default() as graph:
            state = []
            for host in range(N):
                with at(host):
                    state.append(v1.get_variable(f"x{host}", initializer=tf.zeros((1,)), use_resource=True))
            x = [v.read_value() for v in state]
            for _ in range(steps):
                if joined:
                    with at(0):
                        mean = tf.add_n(x) * (1 / N)
                    x = [mean] * N
                after = []
                for host in range(N):
                    with at(host):
                        after.append(x[host] + 1.0)
                x = after
            stores = []
            for host in range(N):
                with at(host):
                    stores.append(state[host].assign(x[host], read_value=False))
            self.step, self.init, self.values = tf.group(*stores), v1.global_variables_initializer(), state
        config = v1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True  # it would fold the additions
        self.session = v1.Session(target, graph=graph, config=config)
        self.run = self.session.make_callable(self.step)
        self.session.run(self.init)
        self.run()


def main():
    hosts = {"hosts": [f"127.0.0.1:{sides.free_port()}" for _ in range(N)]}
    servers = [
        subprocess.Popen([sys.executable, __file__, SERVER, json.dumps(hosts), str(i)], stdin=subprocess.PIPE)
        for i in range(N)
    ]
    graphs = {}

    def graph(program):
        if program not in graphs:
            steps = computation.computations(program, 1)
            graphs[program] = Graph("grpc://" + hosts["hosts"][0], steps, "add" not in program)
        return graphs[program]

    def answer(program, calls, sync):
        g = graph(program)
        g.session.run(g.init)
        start = time.perf_counter()
        for _ in range(calls):
            g.run()
        seconds = time.perf_counter() - start
        computation.check(program, calls, [float(v[0]) for v in g.session.run(g.values)])
        return {"seconds": seconds}

    try:
        graph("add")
        sides.serve(stream, answer, {"version": tf.__version__})
    finally:
        for g in graphs.values():
            g.session.close()  # while its servers are there, or it waits for them
        for server in servers:
            server.stdin.close()
        for server in servers:
            server.wait()


main()
