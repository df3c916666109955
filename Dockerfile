# An image in which kernels are built and put on trial: docker build -t kernelpair . && docker run --rm kernelpair check
# A repository of one's own with a kernelpair_suite.py: docker run --rm -v "$PWD":/kernels -w /kernels kernelpair check
FROM python:3.11-slim-bookworm

RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ git make \
 && rm -rf /var/lib/apt/lists/*

# Where PyTorch's CPU build comes from, as the README says: --build-arg PIP_EXTRA_INDEX_URL=...
ARG PIP_EXTRA_INDEX_URL=""
ARG PIP_INDEX_URL=""

WORKDIR /kernelpair
COPY . .
RUN make build && .venv/bin/pip cache purge
ENV PATH=/kernelpair/.venv/bin:$PATH CI=1
ENTRYPOINT ["kernelpair"]
CMD ["check"]
