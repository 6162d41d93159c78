"""The paper's figure 12: data parallel training over two islands that a slower network joins."""

import gobench
from page import paragraph, table, verdict

DEVICES = 8  # of each island
SENDS = (
    0.01,
    0.03,
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1,
    1.5,
    2,
)  # time on the network, of a step's computing
DELAYS = ("50us", "1ms", "5ms")  # of a message: within a datacenter, and between two
PAPERS = "0.03"  # the ratio of the paper and of PaLM, which send after the backward
WAYS = {"after": "sent after the backward", "overlapped": "sent during the backward", "late": "used a step later"}


def figure12(quick):
    """The part of the time that devices compute: {sending / computing: {way: part}}."""
    return measured("-islands-send", ",".join(map(str, SENDS[1::4] if quick else SENDS)))


def delays(quick):
    """The same at the paper's ratio, by how long a message is under way: {delay: {way: share}}."""
    chosen = DELAYS[::2] if quick else DELAYS
    return {delay: measured("-islands-send", PAPERS, "-islands-delay", delay)[PAPERS] for delay in chosen}


def measured(*so):
    test, found = "^TestTwoIslandsHideTheirExchangeBehindTheBackward$", {}
    for name, got in gobench.attributes("./core/cluster", test, "-clock-devices", str(DEVICES), *so).items():
        _, send, way = name.split("/")
        found.setdefault(send.partition("=")[2], {})[way] = got["use"]
    return found


def page12(data):
    text = ["## Figure 12: two islands", ""]
    text += paragraph(
        f"Data-parallel training over two islands of {DEVICES} simulated devices, with a clock of their own, real"
        " messages and a real control plane. The model has 16 layers, whose backwards take twice as long as their"
        " forwards. Each device exchanges its part of the gradients with its partner in the other island. Cells are"
        " the part of the time that devices compute: what 32 steps are told to compute, divided by what they took. A"
        " single island of twice the size would exchange nothing and take only the former; it is not run. A test in Go"
        " submits the steps in place of the examples' library, which runs in the rows of this machine below. Each row"
        " is named after the time that the exchange takes on the network, as a part of the time that a step computes."
        " More is better."
    )
    rows = [[f"{float(send):g}", *(f"{of[way]:.1%}" for way in WAYS)] for send, of in data.items()]
    text += [table(["sending / computing", *WAYS.values()], rows), "", "![figure 12](figure12.png)", ""]
    if PAPERS in data:
        at = data[PAPERS]
        said = f"at {PAPERS}, the ratio at which the paper has 97 %"
        text.append(
            verdict(f"Simulated, overlapped, {said}: {at['overlapped']:.1%} (target 97 %)", at["overlapped"] >= 0.97)
        )
        text.append(verdict(f"Simulated, across steps, {said}: {at['late']:.1%} (target 99 %)", at["late"] >= 0.99))
        text.append("")
    text += paragraph(
        "*Sent after the backward*, as in the paper and PaLM, costs what the network takes. *Sent during it*, each"
        " layer's gradients leave as soon as its backward has made them. Only those of the last layer are then left to"
        " send, as long as the network takes no longer than the backward, which is two thirds of a step. *Used a step"
        " later*, after the next backward, all gradients may be under way for a whole step. The optimizer then gets"
        " gradients of the weights before its last step, which the user has to allow: `--late` of [the decoder over"
        " two islands](../../examples/models/two_islands.py) says exactly what it computes."
    )
    return text


def page_delays(data):
    text = ["### Where messages take longer", ""]
    text += paragraph(
        f"The same at {PAPERS}, for several delays: the time that a message, or the first byte of an array, is under"
        " way from one island to the other. In the table above it is 50 µs. A step computes for 48 ms. It waits for"
        " one such delay if its own gradients are used, and for none if they are used a step later."
    )
    names = [delay.replace("us", " µs").replace("ms", " ms") for delay in data]
    rows = [[name, *(f"{of[way]:.1%}" for way in WAYS)] for name, of in zip(names, data.values(), strict=True)]
    return [*text, table(["delay", *WAYS.values()], rows), ""]
