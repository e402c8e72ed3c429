# Image with the command `fedprivjax` on a CPU. In a checkout:
#
#     docker build --file .docker/cpu.Dockerfile --tag fedprivjax .
#     docker run --rm --volume "$PWD/results:/work/results" fedprivjax run quickstart
FROM python:3.12-slim
COPY . /source
RUN pip install --no-cache-dir /source && rm -r /source
RUN useradd --create-home user && install --directory --owner user /work
USER user
WORKDIR /work
ENTRYPOINT ["fedprivjax"]
