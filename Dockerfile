# headrace on CPUs:  docker build -t headrace . && docker run --rm -v "$PWD:/work" headrace train /work/corpus.txt --out /work/run
FROM python:3.13-slim AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
# The index to install from; one that has PyTorch's CPU builds makes the image 4 GB smaller.
ARG PIP_EXTRA_INDEX_URL
COPY . /source
RUN python -m venv /opt/headrace && /opt/headrace/bin/pip install --no-cache-dir /source

FROM python:3.13-slim
COPY --from=build /opt/headrace /opt/headrace
RUN useradd --create-home --uid 1000 headrace
USER 1000
WORKDIR /work
ENV PATH=/opt/headrace/bin:$PATH
ENTRYPOINT ["headrace"]
CMD ["--help"]
