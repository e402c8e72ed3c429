# Image with the command `fedprivjax` on NVIDIA GPUs; CUDA comes with jax's packages, the driver from the host. In a checkout:
#
#     docker build --file .docker/cuda.Dockerfile --tag fedprivjax-cuda .
#     docker run --rm --gpus all --volume "$PWD/results:/home/user/results" fedprivjax-cuda run quickstart
FROM python:3.12-slim
COPY . /source
RUN pip install --no-cache-dir '/source[cuda12]' && rm -r /source
RUN useradd --create-home user
USER user
WORKDIR /home/user
ENTRYPOINT ["fedprivjax"]
