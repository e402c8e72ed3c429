# Image with the command `fedprivjax` on a CPU. In a checkout:
#
#     docker build --file .docker/cpu.Dockerfile --tag fedprivjax .
#     docker run --rm --volume "$PWD/results:/home/user/results" fedprivjax run quickstart
FROM python:3.12-slim
COPY . /source
RUN pip install --no-cache-dir /source && rm -r /source
RUN useradd --create-home user
USER user
WORKDIR /home/user
ENTRYPOINT ["fedprivjax"]
