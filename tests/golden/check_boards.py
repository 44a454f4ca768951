#!/usr/bin/env python3
"""Trains a tiny model with report_to: [tensorboard, mlflow], and reads it back with the boards' own programs from PyPI:

    python3 -m venv V && V/bin/pip install mlflow tensorboard
    V/bin/python tests/golden/check_boards.py build/inlay

MLflow's real server runs on loopback, once by http and once by https with a certificate of our own (needs openssl): trusted, the run
is there with every figure; not trusted, the training ends all the same and says why nothing was told."""
import json, os, pathlib, signal, socket, ssl, subprocess, sys, tempfile, time, urllib.request

inlay = pathlib.Path(sys.argv[1]).resolve()
folder = pathlib.Path(tempfile.mkdtemp())
failures = []


def check(what, good, detail=""):
    print(("ok    " if good else "WRONG ") + what + ("" if good else f": {detail}"), flush=True)
    if not good:
        failures.append(what)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def server(name, *options):
    port, store = free_port(), folder / name
    store.mkdir()
    mlflow = pathlib.Path(sys.executable).with_name("mlflow")
    process = subprocess.Popen([mlflow, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
                                "--backend-store-uri", f"sqlite:///{store}/runs.db", *options], cwd=store,
                               stdout=open(store / "log", "w"), stderr=subprocess.STDOUT, start_new_session=True)
    uri = f"{'https' if options else 'http'}://127.0.0.1:{port}"
    for _ in range(240):
        try:
            urllib.request.urlopen(f"{uri}/health", timeout=2, context=ssl._create_unverified_context())
            return process, uri
        except OSError:
            time.sleep(0.5)
    os.killpg(process.pid, signal.SIGTERM)
    sys.exit((store / "log").read_text())


def train(name, uri, **environment):
    (folder / f"{name}.yaml").write_text(
        f"base_model: {folder}/model\noutput_dir: {folder}/{name}\ndatasets: [{{path: {folder}/rows.jsonl}}]\nlearning_rate: 1e-3\n"
        f"max_steps: 6\nval_set_size: 2\neval_steps: 3\nsequence_len: 64\nreport_to: [tensorboard, mlflow]\n"
        f"mlflow_tracking_uri: {uri}\nmlflow_experiment_name: check\ndevice: cpu\n")
    return subprocess.run([inlay, "train", folder / f"{name}.yaml"], capture_output=True, text=True, env={**os.environ, **environment})


def figures(name, key):
    return [r[key] for r in map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines()) if key in r]


def read_back(name, uri):
    from mlflow import MlflowClient
    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("check").experiment_id])
    run = next(r for r in runs if r.info.run_name == name)
    losses = [m.value for m in sorted(client.get_metric_history(run.info.run_id, "train/loss"), key=lambda m: m.step)]
    check(f"{name}: MLflow has every loss", losses == figures(name, "loss"), f"{losses} {figures(name, 'loss')}")
    check(f"{name}: the run is finished and has its configuration",
          run.info.status == "FINISHED" and run.data.params.get("learning_rate") == "0.001", f"{run.info.status} {run.data.params}")


subprocess.run([inlay, "init", "--preset", "tiny", folder / "model"], check=True, capture_output=True)
(folder / "rows.jsonl").write_text("".join(json.dumps({"text": f"number {i} is here"}) + "\n" for i in range(20)))
process, uri = server("http")
try:
    result = train("plain", uri)
    check("plain: the run ends well", result.returncode == 0, result.stderr)
    read_back("plain", uri)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(folder / "plain/tensorboard"))
    events.Reload()
    shown, logged = [e.value for e in events.Scalars("train/loss")], figures("plain", "loss")
    check("plain: TensorBoard has every loss, in fp32", len(shown) == len(logged) and
          all(abs(a - b) <= 1e-7 * abs(b) for a, b in zip(shown, logged)), f"{shown} {logged}")
finally:
    os.killpg(process.pid, signal.SIGTERM)

key, certificate = folder / "key.pem", folder / "certificate.pem"
subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
                "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate], check=True, capture_output=True)
process, uri = server("https", "--uvicorn-opts", f"--ssl-keyfile {key} --ssl-certfile {certificate}")
try:
    result = train("trusted", uri, SSL_CERT_FILE=str(certificate))
    check("trusted: the run ends well", result.returncode == 0, result.stderr)
    os.environ["REQUESTS_CA_BUNDLE"] = str(certificate)
    print("      " + "\n      ".join(line for line in result.stderr.splitlines() if "mlflow" in line.lower()))
    read_back("trusted", uri)
    result = train("untrusted", uri)
    told = [line for line in result.stderr.splitlines() if "mlflow" in line.lower()]
    check("untrusted: the run ends well and says why nothing was told", result.returncode == 0 and told, result.stderr)
    print("      " + "\n      ".join(told))
finally:
    os.killpg(process.pid, signal.SIGTERM)
sys.exit(bool(failures))
