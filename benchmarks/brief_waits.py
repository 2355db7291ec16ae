"""Makes PyTorch's threads wait as they do in `headrace train`. Import it before torch, or it is too late."""

from headrace.machine.waiting import wait_briefly

wait_briefly()
